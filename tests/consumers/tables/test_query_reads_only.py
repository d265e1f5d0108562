"""`rollcall query` only reads: no statement writes, removes or reads any other file."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall.consumers.tables.parquet import SCHEMAS
from rollcall.consumers.tables.query import Tables, open_tables
from rollcall.schemas.errors import Refused
from tests.support.tiers import examples

ROWS = 5
SECRET = "a word that stands in no table"
# {dir} is the directory of the tables, {file} a file of them, {out} a place beside them.
KINDS = [
    "copy (select 1) to '{out}'", "copy trajectories to '{file}' (format parquet)",
    "copy (select * from trajectories where false) to 'tables://{file}' (format parquet)",
    "copy trajectories from '{file}'", "export database '{out}'", "import database '{dir}'",
    "attach '{out}' as other", "attach '{out}' as other (type duckdb, read_only false)",
    "create table t as select 42", "create or replace temp view trajectories as select 1",
    "create macro m() as 1", "create secret s (type s3, key_id 'a', secret 'b')",
    "create temp table u as select * from read_text('{secret}')",
    "insert into later_scores select * from later_scores", "delete from later_trajectories",
    "update later_scores set filename = ''", "truncate later_scores",
    "merge into later_scores using scores on true when matched then delete",
    "drop view trajectories", "drop table later_scores", "alter table later_scores rename to x",
    "set enable_external_access = true", "set disabled_filesystems = ''", "reset memory_limit",
    "set allowed_directories = ['/']", "pragma database_list", "pragma enable_profiling = 'json'",
    "set profiling_output = '{out}'", "install httpfs", "load '{out}'", "vacuum", "analyze",
    "checkpoint", "begin", "commit", "use memory", "detach memory", "deallocate all",
    "prepare p as copy (select 1) to '{out}'", "execute p", "call enable_logging('QueryLog')",
    "call enable_logging(storage := 'file', storage_config := {{'path': '{out}'}})",
    "select * from enable_logging(storage := 'file', storage_config := {{'path': '{out}'}})",
    "select * from query('copy (select 1) to ''{out}''')", "select * from glob('{dir}/../*')",
    "select * from read_text('{secret}')", "select * from read_text('file://{secret}')",
    "select * from read_text('tables://{secret}')", "select * from read_blob('tables://{link}')",
    "select * from read_csv('{secret}')", "select * from '{secret}'", "from '{link}'",
    "select * from read_text('tables://{dir}/../secret.txt')", "select * from sniff_csv('{link}')",
    "select * from read_csv('tables://{link}', store_rejects = true)",
    "with gone as (delete from later_scores returning *) select * from gone",
    "with x as (copy (select 1) to '{out}') select 1", "select write_log('x')", "select 1",
    "select * from force_checkpoint()", "select * from checkpoint('{out}')",
    "select * from trajectories", "select count(*) from turns", "values (1)", "from scores",
    "describe trajectories", "show tables", "summarize trajectories", "pivot scores on reason",
]  # fmt: skip
WRAPPERS = [
    "{}", "explain {}", "explain analyze {}", "EXPLAIN\n\tANALYZE {}", "explain (analyze) {}",
    "explain (analyze, format json) {}", "explain (format json) {}", "/* */ explain analyze {}",
    "explain /* */ analyze {}", "explain -- x\n analyze {}", "explain analyze /* ( */ {}",
    "explain explain analyze {}", "explain analyze explain analyze {}", "({})", "; {} ;",
    "{}; select 1", "select 1; {}", "select * from ({})", "with x as ({}) select * from x",
    "explain analyze with x as ({}) select * from x", "prepare p as {}", "execute immediate '{}'",
    "create table z as {}", "copy ({}) to '{{out}}'", "select * from query($${}$$)",
]  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("it's home [1]")
    file = home / "tables" / "trajectories" / "day=2026-01-01" / "x.parquet"
    file.parent.mkdir(parents=True)
    rows = [{"rollout_id": f"r{number}"} for number in range(ROWS)]
    pq.write_table(pa.Table.from_pylist(rows, SCHEMAS["trajectories"]), file)
    (home / "secret.txt").write_text(SECRET)
    (home / "tables" / "link.parquet").symlink_to(home / "secret.txt")
    return home


@pytest.fixture
def tables(home: Path) -> Iterator[Tables]:
    with open_tables([home / "tables"]) as tables:
        yield tables


def state(home: Path) -> dict[str, str]:
    """Every file below a directory, by its content."""
    found = {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(home.rglob("*"))
    }
    return found | {"here": str(sorted(os.listdir()))}


def filled(text: str, home: Path) -> str:
    tables = home / "tables"
    names = {
        "dir": tables, "file": next(tables.glob("*/*/*.parquet")), "out": home / "out",
        "secret": home / "secret.txt", "link": tables / "link.parquet",
    }  # fmt: skip
    return text.format(**{name: str(path).replace("'", "''") for name, path in names.items()})


def ask_all(tables: Tables, sql: str) -> str:
    """The result of a statement; empty if it is refused, which is the only allowed error."""
    try:
        return str(list(tables.ask(sql).rows))
    except Refused:
        return ""


def test_no_wrapped_statement_writes_or_reads_other_files(home: Path, tables: Tables) -> None:
    before = state(home)

    for kind in KINDS:
        for wrapper in WRAPPERS:
            assert SECRET not in ask_all(tables, filled(wrapper.format(kind), home)), (
                wrapper,
                kind,
            )

    assert state(home) == before
    assert list(tables.ask("select count(*) from trajectories").rows) == [(ROWS,)]
    assert list(tables.ask("select count(*) from later_scores").rows) == [(0,)]


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.sampled_from([*KINDS, *WRAPPERS, "explain", "analyze", "(", ")"]), max_size=4))
def test_random_statements_do_no_harm(home: Path, parts: list[str]) -> None:
    before = state(home)
    sql = " ".join(filled(part.replace("{}", "select 1"), home) for part in parts)

    with open_tables([home / "tables"]) as tables:
        assert SECRET not in ask_all(tables, sql)
        assert list(tables.ask("select count(*) from trajectories").rows) == [(ROWS,)]

    assert state(home) == before


@pytest.mark.parametrize("kind", KINDS)
def test_the_connection_itself_has_no_file_access(home: Path, kind: str) -> None:
    """Even for a statement that would pass the check of its kind."""
    before = state(home)

    with open_tables([home / "tables"]) as tables:
        try:
            found = tables._connection.execute(filled(kind, home)).fetchall()
        except duckdb.Error:
            found = []
        assert SECRET not in str(found)

    assert state(home) == before


def test_no_python_variable_is_visible_as_a_table(tables: Tables) -> None:
    in_scope = pa.table({"word": [SECRET]})

    assert ask_all(tables, "select * from in_scope") == ""
    assert in_scope.num_rows == 1


@pytest.mark.parametrize("explain", ["explain", "explain analyze", "EXPLAIN (FORMAT json)"])
def test_a_select_can_be_explained(tables: Tables, explain: str) -> None:
    assert list(tables.ask(f"{explain} select count(*) from trajectories").rows)
