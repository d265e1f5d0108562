"""A box has the variables of its image, such as the PATH of conda, Go and Rust images."""

import asyncio
from pathlib import Path

import pytest

from rollcall.sandbox.boxes.box import VARIABLES, ImageBuild, Spec, driver
from rollcall.sandbox.boxes.interior import box_environment
from tests.support.engines import IMAGE, left_out

SYSTEM = VARIABLES["PATH"]
LAYOUTS = {
    "SWE-bench": (
        "/opt/miniconda3/envs/testbed/bin/python",
        {"PATH": f"/opt/miniconda3/envs/testbed/bin:/opt/miniconda3/bin:{SYSTEM}"},
    ),
    "SWE-rebench": (
        "/opt/conda/envs/testbed/bin/python",
        {"PATH": f"/opt/conda/envs/testbed/bin:{SYSTEM}", "CONDA_DEFAULT_ENV": "testbed"},
    ),
    "golang": (
        "/usr/local/go/bin/go",
        {"PATH": f"/go/bin:/usr/local/go/bin:{SYSTEM}", "GOPATH": "/go", "GOTOOLCHAIN": "local"},
    ),
    "rust": (
        "/usr/local/cargo/bin/cargo",
        {
            "PATH": f"/usr/local/cargo/bin:{SYSTEM}",
            "RUSTUP_HOME": "/usr/local/rustup",
            "CARGO_HOME": "/usr/local/cargo",
        },
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_box_variables_extend_those_of_the_image(layout: str) -> None:
    _, own = LAYOUTS[layout]
    image = [f"{name}={value}" for name, value in {**own, "HOME": "/root", "TZ": "CET"}.items()]

    found = box_environment(Spec(env={"TZ": "EST"}), [*image, "no value"])

    assert found == {**VARIABLES, **own, "HOME": "/w", "TMPDIR": "/tmp", "TZ": "EST"}
    assert box_environment(Spec(), []) == box_environment(Spec())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_programs_are_found_on_the_path_of_the_image(layout: str, tmp_path: Path) -> None:
    if not IMAGE:
        left_out("docker", "variables of an image; `.ci/docker` starts an engine")
    program, own = LAYOUTS[layout]
    tmp_path.joinpath("Dockerfile").write_text(
        f"FROM {IMAGE}\n"
        + "".join(f"ENV {name}={value}\n" for name, value in own.items())
        + f"RUN mkdir -p {Path(program).parent} && echo '#!/bin/sh' >{program}"
        + f" && echo 'echo it ran' >>{program} && chmod 755 {program}\n"
    )
    name = f"rollcall/test-layout-{layout.lower()}"

    async def whole() -> str:
        box = await driver("docker").open(Spec(name, build=ImageBuild(str(tmp_path), 300.0)))
        try:
            asked = f"{Path(program).name}; env"
            return (await box.run(["/bin/sh", "-c", asked])).output
        finally:
            await box.close()

    said = asyncio.run(whole()).splitlines()
    assert said[0] == "it ran"
    assert {f"{name}={value}" for name, value in own.items()} <= {*said}
