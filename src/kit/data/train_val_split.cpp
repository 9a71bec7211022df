// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/tensor.h>

#include <lockstep/data/subset.h>

#include "base/throw_error.h"
#include "data/class_samples.h"
#include "data/python_random.h"

namespace lockstep::data {

TrainValIndices train_val_split_indices(const at::Tensor& targets, const TrainValSplitOptions& options) {
  check_labels("train_val_split", targets);
  if (!(options.val_fraction >= 0 && options.val_fraction <= 1)) {
    throw_error<ArgumentError>("train_val_split: val_fraction is {}; it should be between 0 and 1",
                               options.val_fraction);
  }
  PythonRandom random(options.seed);
  std::vector<std::int64_t> train;
  std::vector<std::int64_t> val;
  for (const auto& [label, samples] : samples_by_class(targets)) {
    const auto count = static_cast<std::int64_t>(static_cast<double>(samples.size()) * options.val_fraction);
    std::vector<bool> is_val(samples.size());
    for (const auto drawn : random.sample(std::ssize(samples), count)) {
      is_val[static_cast<std::size_t>(drawn)] = true;
    }
    for (std::size_t i = 0; i < samples.size(); ++i) (is_val[i] ? val : train).push_back(samples[i]);
  }
  return {.train = at::tensor(train, at::kLong), .val = at::tensor(val, at::kLong)};
}

}  // namespace lockstep::data
