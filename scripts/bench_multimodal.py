"""Questions about pictures against lmms-eval's own transformers adapters in one run: CPU seconds of answering them.

    scripts/bench multimodal --peer VENV/bin/python [--images 24] [--width 256] [--runs 3] [--batches 1,4,16]

VENV holds lmms-eval 0.7.3 with filelock<4, decord and qwen-vl-utils; without --peer only our own figures are printed.
Both sides get the same random models, pictures, questions and settings, on one thread, each in a process of its own,
and take turns; loading is not counted. The adapters are llava_hf (which takes batches of one only) and qwen2_vl; the
best of the peer's batch sizes counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

CASES = {"one question": (1, 0), "four questions": (4, 0), "four choices": (1, 4)}
SIDE, NEW, CHOICES = 224, 8, ("red", "green", "blue", "yellow and more")
SYSTEM = "You are a helpful assistant."  # what qwen2_vl puts before every question
WORDS = ["What is the color of the shape?", "Question number", "red green blue yellow and more", "user assistant\n"]


def questions(case: str, images: int) -> list[tuple[int, str]]:
    """(picture, question) of a case."""
    each = CASES[case][0]
    return [(i, f"Question number {j}. What is the color of the shape?") for i in range(images) for j in range(each)]


def pictures(count: int) -> list[Any]:
    import numpy as np
    from PIL import Image

    draw = np.random.default_rng(0)
    return [Image.fromarray(draw.integers(0, 255, (SIDE, SIDE, 3), dtype=np.uint8)) for _ in range(count)]


def template(slot: str) -> str:
    return (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}"
        "{% else %}{% for c in m['content'] %}{% if c['type'] == 'image' %}" + slot
        + "{% else %}{{ c['text'] }}{% endif %}"
        "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )  # fmt: skip


def tokenizer(marks: list[str], chat: str) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=marks, initial_alphabet=alphabet, show_progress=False)
    raw.train_from_iterator(WORDS * 4, trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<pad>", padding_side="left",
        additional_special_tokens=marks[2:],
    )  # fmt: skip
    made.chat_template = chat
    return made


def make_llava(folder: Path, width: int) -> None:
    from transformers import (
        CLIPImageProcessor,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
    )

    chat = template("<image>\n")
    tok = tokenizer(["<pad>", "<|im_end|>", "<|im_start|>", "<image>"], chat)
    size = {"height": SIDE, "width": SIDE}
    images = CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=size)
    processor = LlavaProcessor(
        images, tok, patch_size=14, num_additional_image_tokens=1, vision_feature_select_strategy="default",
        chat_template=chat,
    )  # fmt: skip
    text = LlamaConfig(
        vocab_size=len(tok), hidden_size=width, intermediate_size=3 * width, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=2048, bos_token_id=None, eos_token_id=tok.eos_token_id,
    )  # fmt: skip
    vision = CLIPVisionConfig(
        hidden_size=width, intermediate_size=4 * width, num_hidden_layers=6, num_attention_heads=8, image_size=SIDE,
        patch_size=14, projection_dim=width,
    )  # fmt: skip
    config = LlavaConfig(
        text_config=text, vision_config=vision, vision_feature_layer=-1,
        image_token_index=tok.convert_tokens_to_ids("<image>"), image_seq_length=(SIDE // 14) ** 2,
    )  # fmt: skip
    save(LlavaForConditionalGeneration(config), processor, folder)


def make_qwen2_vl(folder: Path, width: int) -> None:
    from transformers import (
        Qwen2VLConfig,
        Qwen2VLForConditionalGeneration,
        Qwen2VLImageProcessor,
        Qwen2VLProcessor,
        Qwen2VLVideoProcessor,
    )

    marks = ["<pad>", "<|im_end|>", "<|im_start|>"]
    marks += [f"<|{name}|>" for name in ("vision_start", "vision_end", "image_pad", "video_pad")]
    chat = template("<|vision_start|><|image_pad|><|vision_end|>")
    tok = tokenizer(marks, chat)
    pixels = {"min_pixels": SIDE * SIDE, "max_pixels": SIDE * SIDE}
    processor = Qwen2VLProcessor(
        image_processor=Qwen2VLImageProcessor(**pixels), tokenizer=tok,
        video_processor=Qwen2VLVideoProcessor(**pixels), chat_template=chat,
    )  # fmt: skip
    head = width // 8
    sections = [head // 2 - 2 * (head // 6), head // 6, head // 6]
    text = {
        "vocab_size": len(tok), "hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 2048, "bos_token_id": None,
        "eos_token_id": tok.eos_token_id,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections},
    }  # fmt: skip
    vision = {"depth": 6, "embed_dim": width, "hidden_size": width, "num_heads": 8, "mlp_ratio": 4, "patch_size": 14}
    ids = {f"{name}_token_id": tok.convert_tokens_to_ids(mark) for name, mark in (
        ("image", "<|image_pad|>"), ("video", "<|video_pad|>"), ("vision_start", "<|vision_start|>"),
        ("vision_end", "<|vision_end|>"))}  # fmt: skip
    config = Qwen2VLConfig(text_config=text, vision_config=vision, **ids)
    save(Qwen2VLForConditionalGeneration(config), processor, folder)


def save(model: Any, processor: Any, folder: Path) -> None:
    from transformers import GenerationConfig

    tok = processor.tokenizer
    model.generation_config = GenerationConfig(eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


class Ours:
    """Answers through the scheduler; the engine is made anew for every run, so nothing is kept from the one before."""

    def __init__(self, folder: str, images: int, name: str) -> None:
        from transformers import AutoModelForImageTextToText, AutoProcessor

        from fusion_eval.harness.media import Media, digest_of

        self.model: Any = AutoModelForImageTextToText.from_pretrained(folder)
        self.processor = AutoProcessor.from_pretrained(folder)
        self.system = SYSTEM if name == "qwen2_vl" else None
        self.media = [Media("image", digest_of(p.tobytes(), p.size), p) for p in pictures(images)]

    def run(self, case: str, batch: int) -> list[Any]:
        from fusion_eval.harness.engine.vision import VisionLanguageModel
        from fusion_eval.harness.media import Conversation
        from fusion_eval.harness.request import Request
        from fusion_eval.harness.scheduler import Scheduler

        made = []
        for number, (i, question) in enumerate(questions(case, len(self.media))):
            asked = Conversation.ask([self.media[i]], question, self.system)
            if CASES[case][1]:
                made += [Request("loglikelihood", {}, (asked, c), 0, ("t", number, 1)) for c in CHOICES]
            else:
                settings = {"max_new_tokens": NEW, "do_sample": False}
                made.append(Request("generate_until", {}, (asked, settings), 0, ("t", number, 1)))
        engine = VisionLanguageModel(self.model, self.processor, batch_size=batch or "auto")
        Scheduler(engine).answer(made)
        return [request.resps[0] for request in made]


class WithPictures:
    """llava_hf's processor, given the pictures again where the adapter forgets them, which is an error by now."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self.last: Any = None

    def __call__(self, images: Any = None, **options: Any) -> Any:
        self.last = images if images is not None else self.last
        return self.processor(images=self.last, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.processor, name)


class Peer:
    """One of lmms-eval's own adapters, asked the way its evaluator asks."""

    def __init__(self, folder: str, images: int, name: str) -> None:
        options = {"pretrained": folder, "device": "cpu", "device_map": "cpu"}
        if name == "llava":
            from lmms_eval.models.simple.llava_hf import LlavaHf as Adapter
        else:
            from lmms_eval.models.simple.qwen2_vl import Qwen2_VL as Adapter

            options.update(max_pixels=SIDE * SIDE, min_pixels=SIDE * SIDE)
        self.adapter = Adapter(**options)
        if name == "llava":
            self.adapter._image_processor = WithPictures(self.adapter._image_processor)
        self.pictures = pictures(images)

    def run(self, case: str, batch: int) -> list[Any]:
        docs = questions(case, len(self.pictures))
        self.adapter.batch_size_per_gpu = batch
        self.adapter.task_dict = {"t": {"test": docs}}
        show = lambda doc: [self.pictures[doc[0]]]  # noqa: E731
        if CASES[case][1]:
            asked = [(q, c, show, i, "t", "test") for i, (_, q) in enumerate(docs) for c in CHOICES]
            return list(self.adapter.loglikelihood([SimpleNamespace(args=args) for args in asked]))
        settings = {"max_new_tokens": NEW, "temperature": 0}
        asked = [(q, dict(settings), show, i, "t", "test") for i, (_, q) in enumerate(docs)]
        return list(self.adapter.generate_until([SimpleNamespace(args=args) for args in asked]))


def serve(side: str, folder: str, images: int, name: str) -> None:
    """Answer lines of {"case", "batch"} by lines of CPU seconds and answers."""
    import torch

    torch.set_num_threads(1)
    out, sys.stdout = sys.stdout, sys.stderr
    one = Ours(folder, images, name) if side == "ours" else Peer(folder, images, name)
    for line in sys.stdin:
        asked = json.loads(line)
        before = time.process_time()
        answers = one.run(asked["case"], asked["batch"])
        told = {"s": time.process_time() - before, "answers": answers}
        out.write(json.dumps(told, default=str) + "\n")
        out.flush()


class Side:
    """A process that takes turns."""

    def __init__(self, python: str, side: str, folder: Path, images: int, name: str) -> None:
        command = [python, __file__, "--serve", side, "--folder", str(folder), "--images", str(images), "--name", name]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def ask(self, case: str, batch: int) -> tuple[float, list[Any]]:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps({"case": case, "batch": batch}) + "\n")
        self.process.stdin.flush()
        told = json.loads(self.process.stdout.readline())
        return told["s"], told["answers"]


def measure(name: str, folder: Path, args: argparse.Namespace) -> None:
    ours = Side(sys.executable, "ours", folder, args.images, name)
    peer = Side(args.peer, "peer", folder, args.images, name) if args.peer else None
    batches = [1] if name == "llava" else [int(b) for b in args.batches.split(",")]
    for case in CASES:
        mine, theirs, equal = [], {batch: [] for batch in batches}, ""  # type: ignore[var-annotated]
        for _ in range(args.runs):
            seconds, answers = ours.ask(case, 0)
            mine.append(seconds)
            if peer is None or (CASES[case][1] and name != "llava"):
                continue
            for batch in batches:
                seconds, said = peer.ask(case, batch)
                theirs[batch].append(seconds)
            if not CASES[case][1] and name == "llava":  # qwen2_vl shows its model a JPEG of every picture
                equal = f"{sum(a == b for a, b in zip(answers, said, strict=True))}/{len(said)} equal"
        best = {batch: min(found) for batch, found in theirs.items() if found}
        line = f"{name:10s} {case:16s} ours {min(mine):6.2f} s"
        if best:
            batch = min(best, key=lambda b: best[b])
            line += f"   peer {best[batch]:6.2f} s (batch {batch})   ratio {best[batch] / min(mine):5.2f}   {equal}"
        print(line, flush=True)
    for side in (ours, peer):
        if side is not None and side.process.stdin:
            side.process.stdin.close()
            side.process.wait(timeout=60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="python of an environment with lmms-eval")
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--batches", default="1,4,16")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.folder, args.images, args.name)
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, make in (("llava", make_llava), ("qwen2_vl", make_qwen2_vl)):
            make(Path(folder) / name, args.width)
            measure(name, Path(folder) / name, args)


if __name__ == "__main__":
    main()
