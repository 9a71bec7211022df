// SPDX-License-Identifier: BSD-3-Clause
#include "data/class_samples.h"

#include <limits>

#include "base/throw_error.h"

namespace lockstep::data {

void check_labels(std::string_view function, const at::Tensor& labels) {
  if (labels.defined() && labels.is_cpu() && labels.dim() == 1 &&
      c10::isIntegralType(labels.scalar_type(), /*includeBool=*/true) &&
      labels.numel() <= std::numeric_limits<std::uint32_t>::max()) {
    return;
  }
  throw_error<ArgumentError>("{}: labels should be a 1-dimensional tensor of integers on the CPU", function);
}

std::map<std::int64_t, std::vector<std::int64_t>> samples_by_class(const at::Tensor& labels) {
  std::map<std::int64_t, std::vector<std::int64_t>> classes;
  const auto values = labels.to(at::kLong).contiguous();
  const auto* begin = values.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < values.numel(); ++i) classes[begin[i]].push_back(i);
  return classes;
}

}  // namespace lockstep::data
