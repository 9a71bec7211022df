// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/data/dataset.h>

namespace lockstep::data {

// Throws ArgumentError, which begins with the name of the dataset, when the shapes differ.
at::Tensor stack_samples(std::string_view dataset, const std::vector<at::Tensor>& samples);

// Applies the transforms to each sample of a batch. `indices`: the numbers of the samples in the dataset.
Batch transformed(Batch batch, const at::Tensor& indices, const SampleTransforms& transforms);

}  // namespace lockstep::data
