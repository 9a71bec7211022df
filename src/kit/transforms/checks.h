// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>

#include <lockstep/transforms/geometry.h>

// The edge of the layer: each check throws ArgumentError that names the transform and the value.
namespace lockstep::transforms {

std::string shape_text(const at::Tensor& tensor);

// uint8 or floating point, [..., channels, height, width].
void check_image(std::string_view transform, const at::Tensor& image);
// Colours are defined for one channel and for three.
void check_color_image(std::string_view transform, const at::Tensor& image);
void check_probability(std::string_view transform, double p);
// {least, greatest}, and least is not below `lower_bound`.
void check_range(std::string_view transform, std::string_view argument, const Range& range,
                 double lower_bound);
// Of moved images: nearest or bilinear.
void check_interpolation(std::string_view transform, InterpolationMode interpolation);
// Height and width from one number or two.
std::pair<std::int64_t, std::int64_t> edges_of(std::string_view transform, const Size& size);

}  // namespace lockstep::transforms
