// SPDX-License-Identifier: BSD-3-Clause
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/serialize/archive.h>

#include <lockstep/base/error.h>
#include <lockstep/optim/fused_options.h>

namespace lockstep::optim {
namespace {

constexpr const char* kMaximizeKey = "maximize";

void check_rate(const at::Tensor& lr) {
  if (!lr.defined() || lr.numel() != 1) {
    throw ArgumentError(fmt::format("a tensor as the learning rate must have one element; this is {}",
                                    lr.defined() ? fmt::format("of {}", lr.numel()) : "undefined"));
  }
  const bool takes = lr.scalar_type() == at::kFloat || (lr.is_cpu() && lr.is_floating_point());
  if (!takes || lr.requires_grad()) {
    throw ArgumentError(fmt::format(
        "a tensor as the learning rate must be float32 (on the CPU any floating-point type) and require no "
        "gradient; this is {} on {}{}",
        c10::toString(lr.scalar_type()), lr.device().str(), lr.requires_grad() ? " and requires one" : ""));
  }
}

}  // namespace

FusedOptions::FusedOptions(at::Tensor lr) : lr_tensor_(std::move(lr)) {
  check_rate(lr_tensor_);
  lr_brought_ = tensor_value();
}

void FusedOptions::bring_lr(double lr) {
  if (!lr_tensor_.defined()) return;
  const c10::NoGradGuard no_grad;
  lr_tensor_.fill_(lr);
  lr_brought_ = lr;
}

double FusedOptions::tensor_value() const { return lr_tensor_.item<double>(); }

void FusedOptions::read_extras(torch::serialize::InputArchive& archive) {
  c10::IValue value;
  maximize_ = archive.try_read(kMaximizeKey, value) && value.toBool();
}

void FusedOptions::write_extras(torch::serialize::OutputArchive& archive) const {
  archive.write(kMaximizeKey, c10::IValue(maximize_));
}

}  // namespace lockstep::optim
