"""`wf.image`: sizes, parts, colours and measures of images, as TensorFlow's `tf.image`.

Enters: images (..., height, width, channels), keys. Leaves: ops, or results. Imports: `core`,
`eager`, `ops`, `control`, `autodiff`, `random`, `nn`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.frontend.core.public_names import only_public as _only_public
from weft.frontend.image.colour import (
    adjust_brightness,
    adjust_contrast,
    adjust_gamma,
    adjust_hue,
    adjust_saturation,
    convert_image_dtype,
    grayscale_to_rgb,
    hsv_to_rgb,
    per_image_standardization,
    random_brightness,
    random_contrast,
    random_hue,
    random_saturation,
    rgb_to_grayscale,
    rgb_to_hsv,
)
from weft.frontend.image.geometry import (
    central_crop,
    crop_to_bounding_box,
    extract_patches,
    flip_left_right,
    flip_up_down,
    pad_to_bounding_box,
    random_crop,
    random_flip_left_right,
    random_flip_up_down,
    resize_with_crop_or_pad,
    rot90,
    transpose,
)
from weft.frontend.image.measures import (
    Suppressed,
    non_max_suppression,
    psnr,
    ssim,
    ssim_multiscale,
    total_variation,
)
from weft.frontend.image.sampling import crop_and_resize, resize, resize_with_pad

__all__ = [
    "Suppressed",
    "adjust_brightness",
    "adjust_contrast",
    "adjust_gamma",
    "adjust_hue",
    "adjust_saturation",
    "central_crop",
    "convert_image_dtype",
    "crop_and_resize",
    "crop_to_bounding_box",
    "extract_patches",
    "flip_left_right",
    "flip_up_down",
    "grayscale_to_rgb",
    "hsv_to_rgb",
    "non_max_suppression",
    "pad_to_bounding_box",
    "per_image_standardization",
    "psnr",
    "random_brightness",
    "random_contrast",
    "random_crop",
    "random_flip_left_right",
    "random_flip_up_down",
    "random_hue",
    "random_saturation",
    "resize",
    "resize_with_crop_or_pad",
    "resize_with_pad",
    "rgb_to_grayscale",
    "rgb_to_hsv",
    "rot90",
    "ssim",
    "ssim_multiscale",
    "total_variation",
    "transpose",
]

if not TYPE_CHECKING:  # a type checker knows the names
    __getattr__, __dir__ = _only_public(__name__, __all__)
