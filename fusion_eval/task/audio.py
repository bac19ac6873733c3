"""Audio quality: waveforms (N, T) against reference waveforms."""

from __future__ import annotations

from typing import Any

from fusion_eval.task.battery import MakeMetric, Offer, OfferedBattery, metric_of
from fusion_eval.task.predict import TensorPredict
from fusion_eval.task.task import Task


def _of(name: str, module: str = "torchmetrics.audio", **options: Any) -> MakeMetric:
    return metric_of(f"{module}:{name}", **options)


BATTERY = OfferedBattery(
    "audio",
    {
        "si_sdr": Offer(_of("ScaleInvariantSignalDistortionRatio")),
        "si_snr": Offer(_of("ScaleInvariantSignalNoiseRatio")),
        "stoi": Offer(
            _of("ShortTimeObjectiveIntelligibility", "torchmetrics.audio.stoi", fs=16000), {"pystoi": "audio"}
        ),
        "snr": Offer(_of("SignalNoiseRatio"), default=False),
        "sdr": Offer(_of("SignalDistortionRatio"), default=False),
        "pesq": Offer(
            _of("PerceptualEvaluationSpeechQuality", "torchmetrics.audio.pesq", fs=16000, mode="wb"),
            {"pesq": "pesq"},
            default=False,
        ),
    },
)

AUDIO = Task(
    battery=BATTERY,
    predict_fn=TensorPredict(),
    requires_num_classes=False,
    description="Audio quality: waveforms (N, T) at 16 kHz against references.",
    unit="recording",
    dense=True,
)
