"""Makes `oracle.tar.xz` from an unpacked archive of lm_eval runs.

    python make_oracle.py FOLDER     # FOLDER/{tasks,data,models,runs} as its maker left it, with @ROOT@ in its files

Kept: the task files, their data, both tokenizers (no weights), and what the peer (lm_eval 0.4.13) recorded per document:
arguments, responses, filtered responses, metric values, token ids, results.
"""

import json
import sys
import tarfile
from pathlib import Path

RUNS = ["gpt2__custom", "gpt2__fewshot", "llama__custom_nologitscache", "llama__fewshot", "llama__chat_multi",
        "llama__chat_single"]  # fmt: skip
DROPPED = {"doc"}


def main(folder: Path) -> None:
    out = Path(__file__).parent / "oracle.tar.xz"
    slim = Path(__file__).parent / "_slim"
    with tarfile.open(out, "w:xz", preset=9) as tar:
        for name in ("tasks", "data"):
            tar.add(folder / name, name)
        for model in ("gpt2", "llama"):
            for file in sorted((folder / "models" / model).iterdir()):
                if file.suffix != ".safetensors" and file.name not in ("config.json", "generation_config.json"):
                    tar.add(file, f"models/{model}/{file.name}")
        for run in RUNS:
            for file in sorted((folder / "runs" / run / "samples").glob("*.jsonl")):
                rows = [json.loads(line) for line in file.open(encoding="utf-8")]
                text = "".join(
                    json.dumps({k: v for k, v in row.items() if k not in DROPPED}, ensure_ascii=False) + "\n"
                    for row in rows
                )
                slim.write_text(text, encoding="utf-8")
                tar.add(slim, f"runs/{run}/samples/{file.name}")
            tokens = [json.loads(line) for line in (folder / "runs" / run / "tokens.jsonl").open(encoding="utf-8")]
            kept = [{"ctx": t["ctx"], "cont": t["cont"], "strings": t["strings"]} for t in tokens]
            slim.write_text("".join(json.dumps(t, ensure_ascii=False) + "\n" for t in kept), encoding="utf-8")
            tar.add(slim, f"runs/{run}/tokens.jsonl")
            tar.add(folder / "runs" / run / "results.json", f"runs/{run}/results.json")
    slim.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
