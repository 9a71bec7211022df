// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include <torch/nn/init.h>

#include <lockstep/models/vision.h>

#include "base/throw_error.h"
#include "models/parts.h"

namespace lockstep::models {
namespace {

using torch::nn::BatchNorm2d;
using torch::nn::Conv2d;

// The nearest multiple of `divisor` that is not below 90% of the value.
std::int64_t divisible(double value, std::int64_t divisor) {
  const auto rounded =
      static_cast<std::int64_t>(value + static_cast<double>(divisor) / 2) / divisor * divisor;
  const auto result = std::max(divisor, rounded);
  return static_cast<double>(result) < 0.9 * value ? result + divisor : result;
}

struct ConvNormOptions {
  std::int64_t in;
  std::int64_t out;
  std::int64_t kernel_size = 3;
  std::int64_t stride = 1;
  std::int64_t groups = 1;
};

class Conv2dNormActivationImpl : public Part<Conv2dNormActivationImpl, ConvNormOptions> {
 public:
  explicit Conv2dNormActivationImpl(const ConvNormOptions& options) : Part("Conv2dNormActivation", options) {
    reset();
  }

  void reset() override {
    const auto& [in, out, kernel_size, stride, groups] = options_;
    conv_ = register_module("0", Conv2d(torch::nn::Conv2dOptions(in, out, kernel_size)
                                            .stride(stride)
                                            .padding((kernel_size - 1) / 2)
                                            .groups(groups)
                                            .bias(false)));
    norm_ = register_module("1", BatchNorm2d(out));
    activation_ = register_module("2", torch::nn::ReLU6(torch::nn::ReLU6Options(true)));
  }

  at::Tensor forward(const at::Tensor& x) { return activation_->forward(norm_->forward(conv_->forward(x))); }

 private:
  Conv2d conv_{nullptr};
  BatchNorm2d norm_{nullptr};
  torch::nn::ReLU6 activation_{nullptr};
};
TORCH_MODULE(Conv2dNormActivation);

struct InvertedResidualOptions {
  std::int64_t in;
  std::int64_t out;
  std::int64_t stride;
  std::int64_t expand_ratio;
};

class InvertedResidualImpl : public Part<InvertedResidualImpl, InvertedResidualOptions> {
 public:
  explicit InvertedResidualImpl(const InvertedResidualOptions& options) : Part("InvertedResidual", options) {
    reset();
  }

  void reset() override {
    const auto& [in, out, stride, expand_ratio] = options_;
    const auto hidden = in * expand_ratio;
    torch::nn::Sequential layers;
    if (expand_ratio != 1)
      layers->push_back(Conv2dNormActivation(ConvNormOptions{.in = in, .out = hidden, .kernel_size = 1}));
    layers->push_back(Conv2dNormActivation(
        ConvNormOptions{.in = hidden, .out = hidden, .stride = stride, .groups = hidden}));
    layers->push_back(Conv2d(torch::nn::Conv2dOptions(hidden, out, 1).bias(false)));
    layers->push_back(BatchNorm2d(out));
    conv_ = register_module("conv", layers);
  }

  at::Tensor forward(const at::Tensor& x) {
    const bool residual = options_.stride == 1 && options_.in == options_.out;
    return residual ? x + conv_->forward(x) : conv_->forward(x);
  }

 private:
  torch::nn::Sequential conv_{nullptr};
};
TORCH_MODULE(InvertedResidual);

void check_setting(const MobileNetV2Options& options) {
  const auto& rows = options.inverted_residual_setting;
  const bool valid = !rows.empty() && std::ranges::all_of(rows, [](const InvertedResidualSetting& row) {
    return row.t >= 1 && row.c >= 1 && row.n >= 1 && (row.s == 1 || row.s == 2);
  });
  if (!valid) {
    throw ArgumentError(
        "MobileNetV2: inverted_residual_setting needs rows {t, c, n, s} of positive numbers with a stride s "
        "of 1 or 2");
  }
  if (!(options.width_mult > 0) || options.round_nearest < 1) {
    throw_error<ArgumentError>("MobileNetV2: width_mult = {} and round_nearest = {} must be positive",
                               options.width_mult, options.round_nearest);
  }
}

void initialize_mobilenet(torch::nn::Module& net) {
  namespace init = torch::nn::init;
  net.apply([](torch::nn::Module& module) {
    if (auto* conv = module.as<Conv2d>()) init::kaiming_normal_(conv->weight, 0, torch::kFanOut);
    if (auto* linear = module.as<torch::nn::Linear>()) {
      init::normal_(linear->weight, 0, 0.01);
      init::zeros_(linear->bias);
    }
  });
}

}  // namespace

MobileNetV2Impl::MobileNetV2Impl(const MobileNetV2Options& options)
    : Cloneable("MobileNetV2"), options_(options) {
  check_setting(options);
  reset();
}

void MobileNetV2Impl::reset() {
  const auto channels = [&](double count) { return divisible(count, options_.round_nearest); };
  auto in = channels(32 * options_.width_mult);
  features.begin(
      *this, "features",
      torch::nn::Sequential(Conv2dNormActivation(ConvNormOptions{.in = 3, .out = in, .stride = 2})));
  for (const auto& [t, c, n, s] : options_.inverted_residual_setting) {
    const auto out = channels(static_cast<double>(c) * options_.width_mult);
    for (std::int64_t i = 0; i < n; ++i) {
      features->push_back(InvertedResidual(
          InvertedResidualOptions{.in = in, .out = out, .stride = i == 0 ? s : 1, .expand_ratio = t}));
      in = out;
    }
  }
  const auto last = channels(1280 * std::max(1.0, options_.width_mult));
  features->push_back(Conv2dNormActivation(ConvNormOptions{.in = in, .out = last, .kernel_size = 1}));
  classifier.begin(*this, "classifier",
                   torch::nn::Sequential(torch::nn::Dropout(options_.dropout),
                                         torch::nn::Linear(last, options_.num_classes)));
  initialize_mobilenet(*this);
}

at::Tensor MobileNetV2Impl::forward(const at::Tensor& images) {
  const auto x = at::adaptive_avg_pool2d(features->forward(images), {1, 1});
  return classifier->forward(x.flatten(1));
}

MobileNetV2 mobilenet_v2(const MobileNetV2Options& options) { return MobileNetV2(options); }

}  // namespace lockstep::models
