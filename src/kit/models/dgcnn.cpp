// SPDX-License-Identifier: BSD-3-Clause
#include <lockstep/models/vision.h>

#include "base/throw_error.h"
#include "models/parts.h"

namespace lockstep::models {
namespace {

using torch::nn::BatchNorm1d;
using torch::nn::BatchNorm2d;
using torch::nn::Linear;
using torch::nn::Sequential;

constexpr double kSlope = 0.2;

// [batch, channels, number] -> the indices of the k nearest points of each point, [batch, number, k]
at::Tensor nearest(const at::Tensor& points, std::int64_t k) {
  const auto x = points.detach();
  const auto squares = x.square().sum(1, true);
  const auto closeness = 2 * at::matmul(x.transpose(1, 2), x) - squares - squares.transpose(1, 2);
  return std::get<1>(closeness.topk(k, -1));
}

// The input of an EdgeConv: [batch, channels, number] -> [batch, 2 * channels, number, k]. The first half is
// the offset of each neighbour from its point, the second the point.
at::Tensor edges(const at::Tensor& points, std::int64_t k) {
  const auto batch = points.size(0);
  const auto channels = points.size(1);
  const auto number = points.size(2);
  const auto first = at::arange(batch, points.options().dtype(at::kLong)).view({-1, 1, 1}) * number;
  const auto indices = (nearest(points, k) + first).view(-1);
  const auto rows = points.transpose(1, 2).reshape({batch * number, channels});
  const auto neighbours = rows.index_select(0, indices).view({batch, number, k, channels});
  const auto centres = rows.view({batch, number, 1, channels}).expand({-1, -1, k, -1});
  return at::cat({neighbours - centres, centres}, 3).permute({0, 3, 1, 2}).contiguous();
}

at::Tensor over_last(const at::Tensor& x) { return std::get<0>(x.max(-1)); }

Sequential edge_conv(std::int64_t in, std::int64_t out, const BatchNorm2d& norm) {
  return Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(2 * in, out, 1).bias(false)), norm,
                    torch::nn::LeakyReLU(torch::nn::LeakyReLUOptions().negative_slope(kSlope)));
}

Linear without_bias(std::int64_t in, std::int64_t out) {
  return Linear(torch::nn::LinearOptions(in, out).bias(false));
}

}  // namespace

DGCNNImpl::DGCNNImpl(const DGCNNOptions& options) : Cloneable("DGCNN"), options_(options) {
  if (options.k < 1) throw_error<ArgumentError>("DGCNN: k = {}; give at least 1", options.k);
  reset();
}

void DGCNNImpl::reset() {
  const auto embedding = options_.emb_dims;
  bn1 = register_module("bn1", BatchNorm2d(64));
  bn2 = register_module("bn2", BatchNorm2d(64));
  bn3 = register_module("bn3", BatchNorm2d(128));
  bn4 = register_module("bn4", BatchNorm2d(256));
  bn5 = register_module("bn5", BatchNorm1d(embedding));
  conv1 = register_module("conv1", edge_conv(3, 64, bn1));
  conv2 = register_module("conv2", edge_conv(64, 64, bn2));
  conv3 = register_module("conv3", edge_conv(64, 128, bn3));
  conv4 = register_module("conv4", edge_conv(128, 256, bn4));
  conv5 = register_module(
      "conv5", Sequential(torch::nn::Conv1d(torch::nn::Conv1dOptions(512, embedding, 1).bias(false)), bn5,
                          torch::nn::LeakyReLU(torch::nn::LeakyReLUOptions().negative_slope(kSlope))));
  linear1.begin(*this, "linear1", without_bias(2 * embedding, 512));
  bn6 = register_module("bn6", BatchNorm1d(512));
  dp1 = register_module("dp1", torch::nn::Dropout(options_.dropout));
  linear2.begin(*this, "linear2", Linear(512, 256));
  bn7 = register_module("bn7", BatchNorm1d(256));
  dp2 = register_module("dp2", torch::nn::Dropout(options_.dropout));
  linear3.begin(*this, "linear3", Linear(256, options_.output_channels));
}

std::shared_ptr<torch::nn::Module> DGCNNImpl::clone(const std::optional<torch::Device>& device) const {
  auto copy = std::dynamic_pointer_cast<DGCNNImpl>(Cloneable::clone(device));
  // The names of one layer have become layers of their own.
  const auto share = [&]<typename Norm>(const char* name, Norm& norm, const Sequential& conv) {
    norm = copy->replace_module(name,
                                Norm(std::dynamic_pointer_cast<typename Norm::ContainedType>(conv->ptr(1))));
  };
  share("bn1", copy->bn1, copy->conv1);
  share("bn2", copy->bn2, copy->conv2);
  share("bn3", copy->bn3, copy->conv3);
  share("bn4", copy->bn4, copy->conv4);
  share("bn5", copy->bn5, copy->conv5);
  return copy;
}

std::vector<at::Tensor> DGCNNImpl::parameters(bool recurse) const {
  return named_parameters(recurse).values();
}

torch::OrderedDict<std::string, at::Tensor> DGCNNImpl::named_parameters(bool recurse) const {
  return distinct(Module::named_parameters(recurse));
}

at::Tensor DGCNNImpl::forward(const at::Tensor& points) {
  if (points.dim() != 3 || points.size(2) < options_.k) {
    throw_error<ArgumentError>(
        "DGCNN: expected points [batch, 3, number] with at least k = {} points, got a tensor of {} "
        "dimensions with {} in the last; give more points or a smaller k",
        options_.k, points.dim(), points.dim() == 0 ? 0 : points.size(-1));
  }
  auto x = points;
  std::vector<at::Tensor> features;
  for (auto* conv : {&conv1, &conv2, &conv3, &conv4}) {
    x = over_last((*conv)->forward(edges(x, options_.k)));
    features.push_back(x);
  }
  x = conv5->forward(at::cat(features, 1));
  x = at::cat({over_last(x), x.mean(-1)}, 1);
  x = dp1->forward(at::leaky_relu(bn6->forward(linear1->forward(x)), kSlope));
  x = dp2->forward(at::leaky_relu(bn7->forward(linear2->forward(x)), kSlope));
  return linear3->forward(x);
}

}  // namespace lockstep::models
