"""A worker's room with one agent in a box of its own; says the box and stays.

`python tests/support/boxed_agent_worker.py SCRATCH FUNCTION MARK`
"""

import asyncio
import sys
from pathlib import Path

from rollcall.consumers.environments.gateway.gateway import Gateway
from rollcall.consumers.environments.gateway.listening_socket import bind
from rollcall.sandbox.agents.agent_processes import AgentProcesses
from rollcall.sandbox.environments.hosted_agent import HostedAgent
from tests.support.process_host import ProcessHost


async def host(scratch: Path, function: str, mark: str) -> None:
    gateway, processes = Gateway(bind()), AgentProcesses(scratch / "home", scratch / "scratch")
    await gateway.start()
    host = ProcessHost(gateway, processes)
    config = {"agent": "python", "function": function, "mark": mark}
    agent = HostedAgent("python", ["p"], {"config": config}, host, "own")
    await agent.open(0)
    print(host.boxes.lent[0].ident, flush=True)
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(host(Path(sys.argv[1]), *sys.argv[2:]))
