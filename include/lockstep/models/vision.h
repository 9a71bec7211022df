// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>
#include <torch/nn/pimpl.h>

#include <lockstep/models/replaceable.h>

/// Networks with the names of parameters and buffers of their Python originals, so state dicts load both
/// ways. A network made after torch::manual_seed(s) has the weights that Python's has after
/// torch.manual_seed(s). Layers whose type is Replaceable are replaced by assignment, as in Python:
///
///     auto net = lockstep::models::resnet34();
///     lockstep::load_pretrained(net, "resnet34-b627a593.pth");
///     net->fc = torch::nn::Linear(512, 10);
namespace lockstep::models {

/// torchvision's `weights`, which it downloads by name. Giving them does not compile: load_pretrained() takes a file.
/// torchvision's None is std::nullopt or nullptr.
struct PretrainedWeights {
  PretrainedWeights() = default;
  PretrainedWeights(std::nullopt_t) {}
  PretrainedWeights(std::nullptr_t) {}
  template <typename Weights>
  PretrainedWeights(const Weights& /*weights*/) {  // NOLINT: implicit by design
    static_assert(
        sizeof(Weights) == 0,
        "weights: make the network without them, then load_pretrained(net, \"resnet34-b627a593.pth\")");
  }
};

/// Names of weights, such as `ResNet18_Weights::DEFAULT`. Giving one does not compile, see PretrainedWeights. torchvision: `WeightsEnum`.
enum class WeightsEnum : std::uint8_t {
  DEFAULT,                    ///< the best ones
  IMAGENET1K_V1,              ///< of torchvision's first recipe
  IMAGENET1K_V2,              ///< of torchvision's second recipe
  IMAGENET1K_SWAG_E2E_V1,     ///< of a ViT
  IMAGENET1K_SWAG_LINEAR_V1,  ///< of a ViT
};
using ResNet18_Weights = WeightsEnum;         ///< torchvision's name
using ResNet34_Weights = WeightsEnum;         ///< torchvision's name
using ResNet50_Weights = WeightsEnum;         ///< torchvision's name
using ResNet101_Weights = WeightsEnum;        ///< torchvision's name
using ResNeXt50_32X4D_Weights = WeightsEnum;  ///< torchvision's name
using MobileNet_V2_Weights = WeightsEnum;     ///< torchvision's name
using ViT_B_16_Weights = WeightsEnum;         ///< torchvision's name

/// PyTorch: the arguments of `torchvision.models.ResNet`.
struct ResNetOptions {
  PretrainedWeights weights = {};   ///< does not compile: use load_pretrained()
  std::int64_t num_classes = 1000;  ///< number of results
  /// The last normalization of each block starts at zero, so the block starts as the identity.
  bool zero_init_residual = false;
  std::int64_t groups = 1;            ///< of the 3x3 convolutions; other than 1 needs bottlenecks
  std::int64_t width_per_group = 64;  ///< other than 64 needs bottlenecks
  /// For layer2, layer3 and layer4: dilate instead of halving the resolution; needs bottlenecks.
  std::array<bool, 3> replace_stride_with_dilation = {};
};

/// The building block of a ResNet. PyTorch: `BasicBlock`, `Bottleneck`.
enum class ResNetBlock : std::uint8_t {
  basic,       ///< two 3 x 3 convolutions
  bottleneck,  ///< 1 x 1, 3 x 3 and 1 x 1 convolutions
};

class ResNetImpl : public torch::nn::Cloneable<ResNetImpl> {
 public:
  /// `layers`: the number of blocks of layer1 to layer4. Throws ArgumentError for options that BasicBlock
  /// lacks.
  ResNetImpl(ResNetBlock block, const std::array<std::int64_t, 4>& layers, const ResNetOptions& options = {});

  /// [batch, 3, height, width] -> logits [batch, num_classes]
  at::Tensor forward(const at::Tensor& images);
  void reset() override;

  /// 7 x 7, stride 2
  Replaceable<torch::nn::Conv2d> conv1;
  /// after conv1
  Replaceable<torch::nn::BatchNorm2d> bn1;
  /// after bn1
  Replaceable<torch::nn::ReLU> relu;
  /// 3 x 3, stride 2
  Replaceable<torch::nn::MaxPool2d> maxpool;
  /// The blocks of the four stages, with 64, 128, 256 and 512 channels (four times as many with bottlenecks).
  Replaceable<torch::nn::Sequential> layer1, layer2, layer3, layer4;
  /// the mean of all places
  Replaceable<torch::nn::AdaptiveAvgPool2d> avgpool;
  /// the classifier
  Replaceable<torch::nn::Linear> fc;

 private:
  ResNetBlock block_;
  std::array<std::int64_t, 4> layers_;
  ResNetOptions options_;
};

/// PyTorch: `torchvision.models.ResNet`.
TORCH_MODULE(ResNet);

/// ResNet-18. torchvision: models.resnet18.
ResNet resnet18(const ResNetOptions& options = {});
/// ResNet-34. torchvision: models.resnet34.
ResNet resnet34(const ResNetOptions& options = {});
/// ResNet-50. torchvision: models.resnet50.
ResNet resnet50(const ResNetOptions& options = {});
/// ResNet-101. torchvision: models.resnet101.
ResNet resnet101(const ResNetOptions& options = {});
/// ResNeXt-50 with 32 groups of width 4. torchvision: models.resnext50_32x4d.
ResNet resnext50_32x4d(const ResNetOptions& options = {});

/// One row of MobileNetV2Options::inverted_residual_setting.
struct InvertedResidualSetting {
  std::int64_t t;  ///< expansion
  std::int64_t c;  ///< output channels before width_mult
  std::int64_t n;  ///< number of blocks
  std::int64_t s;  ///< stride of the first block, 1 or 2
};

/// PyTorch: the arguments of `torchvision.models.MobileNetV2`.
struct MobileNetV2Options {
  PretrainedWeights weights = {};   ///< does not compile: use load_pretrained()
  std::int64_t num_classes = 1000;  ///< number of results
  double width_mult = 1;            ///< factor of the channels of all layers
  /// The groups of blocks, from the image to the classifier.
  std::vector<InvertedResidualSetting> inverted_residual_setting = {
      {1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
      {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
  std::int64_t round_nearest = 8;  ///< channels are multiples of it
  double dropout = 0.2;            ///< probability, before the classifier
};

class MobileNetV2Impl : public torch::nn::Cloneable<MobileNetV2Impl> {
 public:
  /// Throws ArgumentError for an invalid setting.
  explicit MobileNetV2Impl(const MobileNetV2Options& options = {});

  /// [batch, 3, height, width] -> logits [batch, num_classes]
  at::Tensor forward(const at::Tensor& images);
  void reset() override;

  /// all convolutions
  Replaceable<torch::nn::Sequential> features;
  Replaceable<torch::nn::Sequential>
      classifier;  ///< dropout and a linear layer of 1280 inputs (width_mult <= 1)

 private:
  MobileNetV2Options options_;
};

/// PyTorch: `torchvision.models.MobileNetV2`.
TORCH_MODULE(MobileNetV2);

/// PyTorch: `torchvision.models.mobilenet_v2`.
MobileNetV2 mobilenet_v2(const MobileNetV2Options& options = {});

/// PyTorch: the arguments of `torchvision.models.VisionTransformer`. The defaults are those of ViT-B/16.
struct VisionTransformerOptions {
  PretrainedWeights weights = {};   ///< does not compile: use load_pretrained()
  std::int64_t image_size = 224;    ///< height and width; a multiple of patch_size
  std::int64_t patch_size = 16;     ///< pixels of an edge of a patch
  std::int64_t num_layers = 12;     ///< blocks of the encoder
  std::int64_t num_heads = 12;      ///< heads of each attention
  std::int64_t hidden_dim = 768;    ///< a multiple of num_heads
  std::int64_t mlp_dim = 3072;      ///< width of the hidden layer of a block
  double dropout = 0;               ///< probability, of embeddings and hidden layers
  double attention_dropout = 0;     ///< probability, of the weights of attention
  std::int64_t num_classes = 1000;  ///< number of results
  /// The width of a further layer before the head.
  std::optional<std::int64_t> representation_size = {};
};

/// The classifier of a VisionTransformer.
class VisionTransformerHeadsImpl : public torch::nn::Cloneable<VisionTransformerHeadsImpl> {
 public:
  explicit VisionTransformerHeadsImpl(const VisionTransformerOptions& options);
  /// The classes' results for the encoder's class token.
  at::Tensor forward(const at::Tensor& class_token);
  void reset() override;

  torch::nn::Linear pre_logits{nullptr};  ///< empty without representation_size
  torch::nn::Tanh act{nullptr};           ///< empty without representation_size
  /// the classifier
  Replaceable<torch::nn::Linear> head;

 private:
  VisionTransformerOptions options_;
};
TORCH_MODULE(VisionTransformerHeads);

class VisionTransformerEncoderImpl;

class VisionTransformerImpl : public torch::nn::Cloneable<VisionTransformerImpl> {
 public:
  /// Throws ArgumentError for sizes that do not divide.
  explicit VisionTransformerImpl(const VisionTransformerOptions& options = {});

  /// [batch, 3, image_size, image_size] -> logits [batch, num_classes]. Throws ArgumentError for another
  /// image size.
  at::Tensor forward(const at::Tensor& images);
  void reset() override;

  /// the embedding of patches
  Replaceable<torch::nn::Conv2d> conv_proj;
  at::Tensor class_token;                                 ///< before the patches, [1, 1, hidden_dim]
  std::shared_ptr<VisionTransformerEncoderImpl> encoder;  ///< positions and blocks
  /// the classifier
  Replaceable<VisionTransformerHeads> heads;

 private:
  VisionTransformerOptions options_;
};

/// PyTorch: `torchvision.models.VisionTransformer`.
TORCH_MODULE(VisionTransformer);

/// Throws ArgumentError if a size other than image_size differs from ViT-B/16's. PyTorch:
/// `torchvision.models.vit_b_16`.
VisionTransformer vit_b_16(const VisionTransformerOptions& options = {});

/// ViT-Ti/16: 12 layers, 3 heads, hidden_dim 192, mlp_dim 768, 5.7 million parameters. Throws ArgumentError
/// if a size other than image_size is neither this nor the default. PyTorch:
/// `torchvision.models.VisionTransformer(224, 16, 12, 3, 192, 768)`.
VisionTransformer vit_tiny_16(const VisionTransformerOptions& options = {});

/// PyTorch: the arguments of PointNet's classifier.
struct PointNetOptions {
  std::int64_t num_classes = 40;  ///< number of results
  bool feature_transform = true;  ///< also transforms the features of the points, not only the points
  double dropout = 0.3;           ///< probability, before the classifier
};

/// The T-Net of PointNet: predicts a matrix [k, k] for each cloud; starts as the identity.
class PointNetTransformImpl;

class PointNetImpl : public torch::nn::Cloneable<PointNetImpl> {
 public:
  explicit PointNetImpl(const PointNetOptions& options = {});

  /// Points [batch, 3, number] -> logits [batch, num_classes] and the feature transform [batch, 64, 64] for
  /// feature_transform_regularizer(), undefined without feature_transform.
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& points);
  void reset() override;

  /// The transforms of the points and of their features.
  std::shared_ptr<PointNetTransformImpl> stn, fstn;
  /// Shared layers of the points, in order.
  torch::nn::Conv1d conv1{nullptr}, conv2{nullptr}, conv3{nullptr}, conv4{nullptr}, conv5{nullptr};
  /// After the convolution of the same number.
  torch::nn::BatchNorm1d bn1{nullptr}, bn2{nullptr}, bn3{nullptr}, bn4{nullptr}, bn5{nullptr};
  /// The classifier, in order.
  Replaceable<torch::nn::Linear> fc1, fc2, fc3;
  /// After fc1 and fc2.
  torch::nn::BatchNorm1d bn6{nullptr}, bn7{nullptr};
  /// before fc3
  torch::nn::Dropout dropout{nullptr};

 private:
  PointNetOptions options_;
};

/// The classifier of Qi et al., "PointNet", 2017.
TORCH_MODULE(PointNet);

/// The mean over the batch of the squared Frobenius norm of I - A A^T: how far the transforms are from
/// orthogonal. The paper adds it to the loss with weight 0.001. `transform`: [batch, k, k].
at::Tensor feature_transform_regularizer(const at::Tensor& transform);

/// PyTorch: the arguments of DGCNN's classifier.
struct DGCNNOptions {
  std::int64_t output_channels = 40;  ///< number of classes
  std::int64_t k = 20;                ///< neighbours of each point, itself included
  std::int64_t emb_dims = 1024;       ///< features of the whole cloud
  double dropout = 0.5;               ///< probability, after each hidden layer of the classifier
};

class DGCNNImpl : public torch::nn::Cloneable<DGCNNImpl> {
 public:
  /// Throws ArgumentError for k < 1.
  explicit DGCNNImpl(const DGCNNOptions& options = {});

  /// Points [batch, 3, number] on any device -> logits [batch, output_channels]. Each EdgeConv computes the
  /// k-nearest-neighbour graph of its input anew. Throws ArgumentError for clouds of less than k points.
  at::Tensor forward(const at::Tensor& points);
  void reset() override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

  /// Each once, as in Python: bn1 to bn5 are also in conv1 to conv5.
  std::vector<at::Tensor> parameters(bool recurse = true) const;
  /// The parameters by Python's names, each once.
  torch::OrderedDict<std::string, at::Tensor> named_parameters(bool recurse = true) const;

  /// Parts of conv1 to conv4.
  torch::nn::BatchNorm2d bn1{nullptr}, bn2{nullptr}, bn3{nullptr}, bn4{nullptr};
  /// part of conv5
  torch::nn::BatchNorm1d bn5{nullptr};
  /// Edge convolutions, then the layer that joins their results.
  torch::nn::Sequential conv1{nullptr}, conv2{nullptr}, conv3{nullptr}, conv4{nullptr}, conv5{nullptr};
  /// The classifier, in order.
  Replaceable<torch::nn::Linear> linear1, linear2, linear3;
  /// After linear1 and linear2.
  torch::nn::BatchNorm1d bn6{nullptr}, bn7{nullptr};
  /// After bn6 and bn7.
  torch::nn::Dropout dp1{nullptr}, dp2{nullptr};

 private:
  DGCNNOptions options_;
};

/// The classifier of Wang et al., "Dynamic Graph CNN for Learning on Point Clouds", 2019.
TORCH_MODULE(DGCNN);

// With torchvision's `weights` in front: compiles for nullptr and std::nullopt only. Templates, so that `{}` is the
// options.
template <typename = void>
ResNet resnet18(const PretrainedWeights& weights) {
  return resnet18(ResNetOptions{.weights = weights});
}
template <typename = void>
ResNet resnet34(const PretrainedWeights& weights) {
  return resnet34(ResNetOptions{.weights = weights});
}
template <typename = void>
ResNet resnet50(const PretrainedWeights& weights) {
  return resnet50(ResNetOptions{.weights = weights});
}
template <typename = void>
ResNet resnet101(const PretrainedWeights& weights) {
  return resnet101(ResNetOptions{.weights = weights});
}
template <typename = void>
ResNet resnext50_32x4d(const PretrainedWeights& weights) {
  return resnext50_32x4d(ResNetOptions{.weights = weights});
}
template <typename = void>
MobileNetV2 mobilenet_v2(const PretrainedWeights& weights) {
  return mobilenet_v2(MobileNetV2Options{.weights = weights});
}
template <typename = void>
VisionTransformer vit_b_16(const PretrainedWeights& weights) {
  return vit_b_16(VisionTransformerOptions{.weights = weights});
}
template <typename = void>
VisionTransformer vit_tiny_16(const PretrainedWeights& weights) {
  return vit_tiny_16(VisionTransformerOptions{.weights = weights});
}

}  // namespace lockstep::models
