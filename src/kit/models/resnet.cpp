// SPDX-License-Identifier: BSD-3-Clause
#include <torch/nn/init.h>

#include <lockstep/models/vision.h>

#include "base/throw_error.h"
#include "models/parts.h"

namespace lockstep::models {
namespace {

using torch::nn::BatchNorm2d;
using torch::nn::Conv2d;
using torch::nn::ReLU;
using torch::nn::Sequential;

// What the blocks of one layer have in common, and what differs for the first.
struct BlockOptions {
  std::int64_t inplanes = 64;
  std::int64_t planes = 64;
  std::int64_t stride = 1;
  std::int64_t dilation = 1;
  std::int64_t groups = 1;
  std::int64_t base_width = 64;
  bool downsample = false;
};

Conv2d conv3x3(std::int64_t in, std::int64_t out, std::int64_t stride = 1, std::int64_t groups = 1,
               std::int64_t dilation = 1) {
  return Conv2d(torch::nn::Conv2dOptions(in, out, 3)
                    .stride(stride)
                    .padding(dilation)
                    .groups(groups)
                    .dilation(dilation)
                    .bias(false));
}

Conv2d conv1x1(std::int64_t in, std::int64_t out, std::int64_t stride = 1) {
  return Conv2d(torch::nn::Conv2dOptions(in, out, 1).stride(stride).bias(false));
}

ReLU relu_in_place() { return ReLU(torch::nn::ReLUOptions(true)); }

// The way around a block that changes the shape.
Sequential shortcut(const BlockOptions& options, std::int64_t out) {
  if (!options.downsample) return nullptr;
  return Sequential(conv1x1(options.inplanes, out, options.stride), BatchNorm2d(out));
}

class BasicBlockImpl : public Part<BasicBlockImpl, BlockOptions> {
 public:
  static constexpr std::int64_t kExpansion = 1;

  explicit BasicBlockImpl(const BlockOptions& options) : Part("BasicBlock", options) { reset(); }

  void reset() override {
    const auto& [inplanes, planes, stride, dilation, groups, base_width, _] = options_;
    downsample_ = shortcut(options_, planes);  // before the others, as in Python: it draws first
    conv1_ = register_module("conv1", conv3x3(inplanes, planes, stride));
    bn1 = register_module("bn1", BatchNorm2d(planes));
    relu_ = register_module("relu", relu_in_place());
    conv2_ = register_module("conv2", conv3x3(planes, planes));
    bn2 = register_module("bn2", BatchNorm2d(planes));
    if (downsample_) register_module("downsample", downsample_);
  }

  at::Tensor forward(const at::Tensor& x) {
    auto out = relu_->forward(bn1->forward(conv1_->forward(x)));
    out = bn2->forward(conv2_->forward(out));
    out += downsample_ ? downsample_->forward(x) : x;
    return relu_->forward(out);
  }

  BatchNorm2d bn1{nullptr}, bn2{nullptr};

 private:
  Conv2d conv1_{nullptr}, conv2_{nullptr};
  ReLU relu_{nullptr};
  Sequential downsample_{nullptr};
};
TORCH_MODULE(BasicBlock);

class BottleneckImpl : public Part<BottleneckImpl, BlockOptions> {
 public:
  static constexpr std::int64_t kExpansion = 4;

  explicit BottleneckImpl(const BlockOptions& options) : Part("Bottleneck", options) { reset(); }

  void reset() override {
    const auto& [inplanes, planes, stride, dilation, groups, base_width, _] = options_;
    const auto width =
        static_cast<std::int64_t>(static_cast<double>(planes) * (static_cast<double>(base_width) / 64)) *
        groups;
    const auto out = planes * kExpansion;
    downsample_ = shortcut(options_, out);
    conv1_ = register_module("conv1", conv1x1(inplanes, width));
    bn1_ = register_module("bn1", BatchNorm2d(width));
    conv2_ = register_module("conv2", conv3x3(width, width, stride, groups, dilation));
    bn2_ = register_module("bn2", BatchNorm2d(width));
    conv3_ = register_module("conv3", conv1x1(width, out));
    bn3 = register_module("bn3", BatchNorm2d(out));
    relu_ = register_module("relu", relu_in_place());
    if (downsample_) register_module("downsample", downsample_);
  }

  at::Tensor forward(const at::Tensor& x) {
    auto out = relu_->forward(bn1_->forward(conv1_->forward(x)));
    out = relu_->forward(bn2_->forward(conv2_->forward(out)));
    out = bn3->forward(conv3_->forward(out));
    out += downsample_ ? downsample_->forward(x) : x;
    return relu_->forward(out);
  }

  BatchNorm2d bn3{nullptr};

 private:
  Conv2d conv1_{nullptr}, conv2_{nullptr}, conv3_{nullptr};
  BatchNorm2d bn1_{nullptr}, bn2_{nullptr};
  ReLU relu_{nullptr};
  Sequential downsample_{nullptr};
};
TORCH_MODULE(Bottleneck);

// A layer; `next` describes its first block and afterwards the first of the next layer.
template <typename Block>
Sequential make_layer(BlockOptions& next, std::int64_t planes, std::int64_t blocks, std::int64_t stride,
                      bool dilate) {
  const auto out = planes * Block::ContainedType::kExpansion;
  const auto dilation_after = dilate ? next.dilation * stride : next.dilation;
  next.planes = planes;
  next.stride = dilate ? 1 : stride;
  next.downsample = next.stride != 1 || next.inplanes != out;
  Sequential layer(Block{next});
  next.inplanes = out;
  next.stride = 1;
  next.downsample = false;
  next.dilation = dilation_after;
  for (std::int64_t i = 1; i < blocks; ++i) layer->push_back(Block(next));
  return layer;
}

void check_basic(const ResNetOptions& options) {
  if (options.groups != 1 || options.width_per_group != 64) {
    throw_error<ArgumentError>(
        "ResNet: BasicBlock supports groups = 1 and width_per_group = 64 only, not {} and {}; use a ResNet "
        "of bottlenecks, e.g. resnet50",
        options.groups, options.width_per_group);
  }
  for (const bool dilate : options.replace_stride_with_dilation) {
    if (!dilate) continue;
    throw ArgumentError(
        "ResNet: BasicBlock does not support replace_stride_with_dilation; use a ResNet of bottlenecks, e.g. "
        "resnet50");
  }
}

void initialize_convolutions(torch::nn::Module& net) {
  net.apply([](torch::nn::Module& module) {
    if (auto* conv = module.as<Conv2d>())
      torch::nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
  });
}

void zero_last_norms(torch::nn::Module& net) {
  net.apply([](torch::nn::Module& module) {
    if (auto* block = module.as<Bottleneck>()) torch::nn::init::zeros_(block->bn3->weight);
    if (auto* block = module.as<BasicBlock>()) torch::nn::init::zeros_(block->bn2->weight);
  });
}

}  // namespace

ResNetImpl::ResNetImpl(ResNetBlock block, const std::array<std::int64_t, 4>& layers,
                       const ResNetOptions& options)
    : Cloneable("ResNet"), block_(block), layers_(layers), options_(options) {
  if (block == ResNetBlock::basic) check_basic(options);
  reset();
}

void ResNetImpl::reset() {
  using torch::nn::Conv2dOptions;
  conv1.begin(*this, "conv1", Conv2d(Conv2dOptions(3, 64, 7).stride(2).padding(3).bias(false)));
  bn1.begin(*this, "bn1", BatchNorm2d(64));
  relu.begin(*this, "relu", relu_in_place());
  maxpool.begin(*this, "maxpool", torch::nn::MaxPool2d(torch::nn::MaxPool2dOptions(3).stride(2).padding(1)));
  BlockOptions next;
  next.groups = options_.groups;
  next.base_width = options_.width_per_group;
  const auto& dilate = options_.replace_stride_with_dilation;
  const auto make = block_ == ResNetBlock::basic ? &make_layer<BasicBlock> : &make_layer<Bottleneck>;
  layer1.begin(*this, "layer1", make(next, 64, layers_[0], 1, false));
  layer2.begin(*this, "layer2", make(next, 128, layers_[1], 2, dilate[0]));
  layer3.begin(*this, "layer3", make(next, 256, layers_[2], 2, dilate[1]));
  layer4.begin(*this, "layer4", make(next, 512, layers_[3], 2, dilate[2]));
  avgpool.begin(*this, "avgpool", torch::nn::AdaptiveAvgPool2d(1));
  fc.begin(*this, "fc", torch::nn::Linear(next.inplanes, options_.num_classes));
  initialize_convolutions(*this);
  if (options_.zero_init_residual) zero_last_norms(*this);
}

at::Tensor ResNetImpl::forward(const at::Tensor& images) {
  auto x = maxpool->forward(relu->forward(bn1->forward(conv1->forward(images))));
  for (auto* layer : {&layer1, &layer2, &layer3, &layer4}) x = (*layer)->forward(x);
  return fc->forward(avgpool->forward(x).flatten(1));
}

ResNet resnet18(const ResNetOptions& options) {
  return ResNet(ResNetBlock::basic, std::array{2L, 2L, 2L, 2L}, options);
}
ResNet resnet34(const ResNetOptions& options) {
  return ResNet(ResNetBlock::basic, std::array{3L, 4L, 6L, 3L}, options);
}
ResNet resnet50(const ResNetOptions& options) {
  return ResNet(ResNetBlock::bottleneck, std::array{3L, 4L, 6L, 3L}, options);
}
ResNet resnet101(const ResNetOptions& options) {
  return ResNet(ResNetBlock::bottleneck, std::array{3L, 4L, 23L, 3L}, options);
}

ResNet resnext50_32x4d(const ResNetOptions& options) {
  auto grouped = options;
  const auto set = [](const char* name, std::int64_t& field, std::int64_t unset, std::int64_t value) {
    if (field != unset && field != value)
      throw_error<ArgumentError>("resnext50_32x4d: {} is {}, not {}; leave it unset", name, value, field);
    field = value;
  };
  set("groups", grouped.groups, 1, 32);
  set("width_per_group", grouped.width_per_group, 64, 4);
  return resnet50(grouped);
}

}  // namespace lockstep::models
