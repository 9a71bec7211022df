// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/data/dataset.h>

namespace lockstep::data {

constexpr std::string_view kOneShape = "all samples of a batch should have one shape";
constexpr std::string_view kOnePictureSize =
    "add a transform that gives all samples one size, such as RandomResizedCrop or Resize and CenterCrop";

// Throws ArgumentError, which begins with the name of the dataset and ends with the advice, when the shapes
// differ.
at::Tensor stack_samples(std::string_view dataset, const std::vector<at::Tensor>& samples,
                         std::string_view advice = kOneShape);

// Applies the transforms to each sample of a batch. `indices`: the numbers of the samples in the dataset.
Batch transformed(Batch batch, const at::Tensor& indices, const SampleTransforms& transforms);

}  // namespace lockstep::data
