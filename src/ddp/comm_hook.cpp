// SPDX-License-Identifier: BSD-3-Clause
#include <lockstep/ddp/comm_hook.h>

namespace lockstep {

BucketWork BucketWork::then(Change change) const {
  if (is_done()) return BucketWork(change(result_));
  return {work_, [next = next_, change = std::move(change)] { return next().then(change); }};
}

void BucketWork::advance() {
  if (is_done()) return;
  work_.wait();
  *this = std::exchange(next_, {})();
}

at::Tensor BucketWork::wait() {
  while (!is_done()) advance();
  return result_;
}

std::vector<at::Tensor> GradBucket::gradients() const {
  if (buffer_.is_sparse()) return {buffer_};
  std::vector<at::Tensor> views;
  views.reserve(parameters_.size());
  for (const auto& parameter : parameters_) {
    views.push_back(
        buffer_.narrow(0, parameter.offset, parameter.tensor.numel()).view(parameter.tensor.sizes()));
  }
  return views;
}

}  // namespace lockstep
