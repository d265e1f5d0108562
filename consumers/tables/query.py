"""SQL over exported and archived tables, with DuckDB in this process.

The files hold the log record by record; the views show the records that count. `trajectories` has
one row for each trajectory, its first record, with the result of its first scoring, and every total
by scoring id in `totals`; `turns` are the turns of these; `scores` has one row for each trajectory
and scoring id. Only the given directories are read, and nothing is written.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow as pa

from rollcall.consumers.tables.parquet import SCHEMAS
from rollcall.consumers.tables.table_files import SCHEME, TableFiles
from rollcall.schemas.errors import Refused

EXPLAIN = re.compile(r"\s*explain\b(\s*analyze\b)?(\s*\([^()]*\))?", re.ASCII | re.IGNORECASE)
"""Matches the head of an EXPLAIN; the rest is the statement that it explains."""
FETCHED = 1000
"""Rows that are fetched at a time."""
READ = ("hive_partitioning", "union_by_name", "filename", "file_row_number")
PLACE = 'topic_id, partition, "offset"'
ROW = "filename, file_row_number"
"""The key of a row in a file: the same record may be in several files."""
END = "rollout_id, attempt, journal_partition, last_offset"
FIRST = 'appended_at, partition, "offset"'
# Of two rewards by scorers of one name the first counts, since a map's keys are unique.
BY_SCORER = """
map_from_entries(list_transform(
    list_filter(rewards, lambda each, n:
        list_position(list_transform(rewards, lambda other: other.scorer), each.scorer) = n),
    lambda each: struct_pack(k := each.scorer, v := each.value)
))
"""
VIEWS = f"""
create temp table later_trajectories as
    select {ROW}, regexp_replace(filename, '/trajectories/([^/]+/[^/]+)$', '/turns/\\1') as turns,
        {PLACE}
    from trajectories_as_written
    qualify row_number() over (partition by {END} order by {FIRST}) > 1;
create temp table later_scores as
    select {ROW} from scores_as_written
    qualify row_number() over (partition by {END}, scoring_id order by {FIRST}) > 1;
create temp view scores as
    select * exclude ({ROW}) replace ({BY_SCORER} as rewards), rewards as details
    from scores_as_written anti join later_scores using ({ROW});
create temp view turns as
    select * exclude ({ROW}) from turns_as_written anti join (
        select turns as filename, {PLACE} from later_trajectories
    ) using (filename, {PLACE});
create temp view trajectories as
    select * from (
        select * exclude ({ROW}) from trajectories_as_written
        anti join later_trajectories using ({ROW})
    ) left join (
        select {END},
            first(scoring_id order by {FIRST}) as scoring_id,
            first(total order by {FIRST}) as total,
            first(rewards order by {FIRST}) as rewards,
            first(reason order by {FIRST}) as unscored_because,
            map(list(scoring_id order by {FIRST}), list(total order by {FIRST})) as totals
        from scores group by {END}
    ) using ({END});
"""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The result of a query: the names of its columns, and its rows as an iterator."""

    columns: list[str]
    rows: Iterator[tuple[Any, ...]]


@contextmanager
def open_tables(directories: Sequence[Path]) -> Iterator["Tables"]:
    """Open the exported or archived tables. Raises Refused for a directory without any."""
    for directory in directories:
        if not any(directory.glob("*/day=*/*.parquet")):
            msg = (
                f"nothing is exported in {directory}; write it with `rollcall export --parquet "
                f"{directory}`, or let `rollcall worker archive --dir {directory}` do so"
            )
            raise Refused(msg)
    connection = duckdb.connect()
    try:
        connection.register_filesystem(TableFiles(directories))
        yield Tables(connection, [directory.absolute() for directory in directories])
    finally:
        connection.close()


class Tables:
    """Tables of some directories, opened for queries."""

    def __init__(self, connection: Any, directories: Sequence[Path]) -> None:
        self._connection = connection
        for setting in (
            "errors_as_json = true",
            "python_enable_replacements = false",
            "temp_directory = ''",
            f"allowed_directories = ['{SCHEME}://']",
            "enable_external_access = false",
            "disabled_filesystems = 'LocalFileSystem'",
            "lock_configuration = true",
        ):
            connection.execute(f"set {setting}")
        with _errors_in("the tables"):
            for name in SCHEMAS:
                self._as_written(name, directories)
            connection.execute(VIEWS)

    def _as_written(self, name: str, directories: Sequence[Path]) -> None:
        """Make a view of all records of one table; it is empty if there is no file."""
        view = f"{name}_as_written"
        files = [
            f"{SCHEME}://{escape(str(path))}/{name}/day=*/*.parquet"
            for path in directories
            if any((path / name).glob("day=*/*.parquet"))
        ]
        if not files:
            added = [("filename", pa.string()), ("file_row_number", pa.int64())]
            added += [("day", pa.date32())]
            empty = pa.schema([*SCHEMAS[name], *added]).empty_table()
            self._connection.register(view, empty)
            return
        reads = ", ".join([_sql_list(files), *(f"{option} = true" for option in READ)])
        self._connection.execute(f"create temp view {view} as select * from read_parquet({reads})")

    def ask(self, sql: str) -> QueryResult:
        """Run one query. Raises Refused for its errors, and for any statement that writes."""
        with _errors_in("the query", sql):
            statements = self._connection.extract_statements(sql)
            if len(statements) != 1:
                msg = f"one query at a time, not {len(statements)}"
                raise Refused(msg)
            self._require_select(statements[0], sql)
            result = self._connection.execute(statements[0])
        return QueryResult([column[0] for column in result.description], self._fetched(result, sql))

    def _require_select(self, statement: Any, sql: str) -> None:
        """Raise Refused unless it is a SELECT or its EXPLAIN: EXPLAIN ANALYZE runs all others."""
        kind = statement.type
        if kind == duckdb.StatementType.EXPLAIN:
            inner = self._connection.extract_statements(EXPLAIN.sub("", sql, count=1))
            kind = inner[0].type if len(inner) == 1 else kind
        if kind != duckdb.StatementType.SELECT:
            msg = f"{kind.name} is no query; the tables are only read: SELECT"
            raise Refused(msg)

    def _fetched(self, result: Any, sql: str) -> Iterator[tuple[Any, ...]]:
        while True:
            with _errors_in("the query", sql):
                rows = result.fetchmany(FETCHED)
            if not rows:
                return
            yield from rows


def _sql_list(texts: Any) -> str:
    """Return a list of SQL literals."""
    return "[" + ", ".join("'" + text.replace("'", "''") + "'" for text in texts) + "]"


@contextmanager
def _errors_in(what: str, sql: str = "") -> Iterator[None]:
    """Raise errors of DuckDB as Refused, in one line, with the place if there is one."""
    try:
        yield
    except duckdb.Error as error:
        kind, _, body = str(error).partition(": ")
        try:
            details = orjson.loads(body)
            text, place = details["exception_message"], details.get("position")
        except (orjson.JSONDecodeError, KeyError):
            text, place = body or kind, None
        at = "" if place is None or not sql else f" at {_line_and_column(sql, int(place))}"
        msg = f"{what}{at}: {kind.lower()}: {'; '.join(filter(None, text.splitlines()))}"
        raise Refused(msg) from error


def _line_and_column(sql: str, position: int) -> str:
    """Return line and column of a byte offset, counted from 1."""
    before = sql.encode()[:position].decode(errors="replace")
    column = len(before) - (before.rfind("\n") + 1) + 1
    word = sql[len(before) :].split(maxsplit=1)
    near = f" ({word[0]!r})" if word else ""
    return f"line {before.count(chr(10)) + 1}, column {column}{near}"
