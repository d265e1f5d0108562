"""mini-swe-agent: its commands are environment steps; in the task's box it runs them itself."""

import json
import os
import urllib.request
from typing import Any

SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
SAID = {"role": "assistant", "content": "", "tool_calls": None}
CHOICE = {"index": 0, "finish_reason": "stop", "message": SAID}
CHAT = {"id": "r", "object": "chat.completion", "created": 0, "model": "m", "choices": [CHOICE]}
REHEARSAL = {"/v1/chat/completions": CHAT}


def prepare() -> None:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it is downloaded
    os.environ["MSWEA_COST_TRACKING"] = "ignore_errors"  # a policy of ours has no price
    os.environ |= {"MSWEA_CONFIGURED": "true", "MSWEA_SILENT_STARTUP": "1"}
    os.environ["MSWEA_GLOBAL_CONFIG_DIR"] = os.environ["HOME"]
    import minisweagent.agents.default
    import minisweagent.models.litellm_model  # noqa: F401


def run(task: dict[str, Any], url: str, key: str) -> str:
    import yaml
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.config import builtin_config_dir
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.exceptions import Submitted
    from minisweagent.models.litellm_model import LitellmModel

    class Steps:
        config = None
        serialize = dict  # it has no settings to serialize

        def execute(self, action: dict[str, Any], cwd: str = "") -> dict[str, Any]:
            body = json.dumps({"action": action["command"]}).encode()
            head = {"Authorization": f"Bearer {key}"}
            with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/step", body, head)) as it:
                seen = json.load(it)
            info = json.loads(seen["info"] or "{}")
            # The first line of `shell` states the exit code; other environments show text alone.
            text = seen["text"].partition("\n")[2] if "exit_code" in info else seen["text"]
            if seen["terminated"] or seen["truncated"]:
                text = text.lstrip().removeprefix(f"{SUBMIT}\n")
                extra = {"exit_status": "Submitted", "submission": text}
                raise Submitted({"role": "exit", "content": text, "extra": extra})
            late = "the command timed out" if info.get("timed_out") else ""
            return {"output": text, "returncode": info.get("exit_code", 0), "exception_info": late}

        def get_template_vars(self, **_: object) -> dict[str, str]:
            return {"system": "Linux", "release": "", "version": "", "machine": ""}

    given = yaml.safe_load((builtin_config_dir / "mini.yaml").read_text())
    given["model"]["model_kwargs"] |= {"api_base": f"{url}/v1", "api_key": key}
    name = f"openai/{task['config'].get('model', 'policy')}"
    given["agent"] |= {"cost_limit": 0.0, "step_limit": task["limits"].get("max_turns", 0)}
    kind = LocalEnvironment if task["config"].get("box") == "task" else Steps
    agent = DefaultAgent(LitellmModel(model_name=name, **given["model"]), kind(), **given["agent"])
    return str(agent.run(task["prompt"]).get("submission", ""))
