// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include <lockstep/data/dataset.h>
#include <lockstep/data/image_folder.h>
#include <lockstep/transforms/transform.h>

namespace lockstep::data {

// A dataset whose samples are decoded one by one.
struct ReadableSamples {
  std::string_view dataset;  // for messages
  std::string where;         // for messages: its files
  std::int64_t size;
  OnUnreadable on_unreadable;
  std::atomic<std::int64_t>& unreadable;  // counts
  // A sample without the dimension of the batch. A DataError marks it as unreadable.
  std::function<Batch(std::int64_t index, const transforms::OptionalGenerator&)> load;
};

// Stacks samples. Throws ArgumentError when an index is out of range or shapes differ, and DataError as
// `on_unreadable` says.
Batch readable_batch(const ReadableSamples& samples, const at::Tensor& indices);

}  // namespace lockstep::data
