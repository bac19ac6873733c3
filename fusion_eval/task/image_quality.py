"""Image quality: images (N, C, H, W) with values 0 to 1 against reference images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusion_eval.task.battery import MakeMetric, Offer, OfferedBattery, metric_of
from fusion_eval.task.predict import TensorPredict
from fusion_eval.task.task import Task

if TYPE_CHECKING:
    from torchmetrics import Metric

_VISION = {"torchvision": "vision"}
_FIDELITY = {"torch_fidelity": "image"}
_INCEPTION = "Inception-v3 weights (91 MB)"
_DISTRIBUTIONS = ("FrechetInceptionDistance", "KernelInceptionDistance")


def _of(name: str, module: str = "torchmetrics.image", **options: Any) -> MakeMetric:
    return metric_of(f"{module}:{name}", **options)


def _lpips() -> MakeMetric:
    name, module = "LearnedPerceptualImagePatchSimilarity", "torchmetrics.image.lpip"
    return _of(name, module, net_type="alex", normalize=True)


BATTERY = OfferedBattery(
    "image_quality",
    {
        "ssim": Offer(_of("StructuralSimilarityIndexMeasure", data_range=1.0)),
        "psnr": Offer(_of("PeakSignalNoiseRatio", data_range=1.0)),
        "ms_ssim": Offer(_of("MultiScaleSimilarity", "fusion_eval.task.metric.image", data_range=1.0)),
        "uqi": Offer(_of("UniversalImageQualityIndex"), default=False),
        "vif": Offer(_of("VisualInformationFidelity"), default=False),
        "sam": Offer(_of("SpectralAngleMapper"), default=False),
        "lpips": Offer(_lpips(), _VISION, "AlexNet weights (233 MB)"),
        "dists": Offer(_of("DeepImageStructureAndTextureSimilarity"), _VISION, "VGG-16 weights (528 MB)", False),
        "fid": Offer(
            _of("FrechetInceptionDistance", "torchmetrics.image.fid", normalize=True), _FIDELITY, _INCEPTION, False
        ),
        "kid": Offer(
            _of("KernelInceptionDistance", "torchmetrics.image.kid", normalize=True), _FIDELITY, _INCEPTION, False
        ),
    },
)


def _feed(metric: Metric, preds: Any, target: Any) -> None:
    """Distances between sets of images see the references as the real ones."""
    if type(metric).__name__ in _DISTRIBUTIONS:
        metric.update(target, real=True)
        metric.update(preds, real=False)
    else:
        metric.update(preds, target)


IMAGE_QUALITY = Task(
    battery=BATTERY,
    predict_fn=TensorPredict(),
    requires_num_classes=False,
    description="Image quality: images (N, C, H, W) from 0 to 1 against references; perceptual metrics when named.",
    feed=_feed,
    unit="image",
    dense=True,
)
