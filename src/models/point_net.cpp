// SPDX-License-Identifier: BSD-3-Clause
#include <torch/nn/init.h>

#include <lockstep/models/vision.h>

#include "base/throw_error.h"

namespace lockstep::models {
namespace {

using torch::nn::BatchNorm1d;
using torch::nn::Conv1d;
using torch::nn::Linear;

// A layer that every point shares.
template <typename Layer>
at::Tensor activated(Layer& layer, BatchNorm1d& norm, const at::Tensor& x) {
  return at::relu(norm->forward(layer->forward(x)));
}

at::Tensor over_points(const at::Tensor& x) { return std::get<0>(x.max(2)); }

// Multiplies each point, a column, with its cloud's matrix.
at::Tensor transformed(const at::Tensor& points, const at::Tensor& matrices) {
  return at::bmm(points.transpose(1, 2), matrices).transpose(1, 2);
}

}  // namespace

class PointNetTransformImpl : public torch::nn::Cloneable<PointNetTransformImpl> {
 public:
  explicit PointNetTransformImpl(std::int64_t k) : Cloneable("PointNetTransform"), k_(k) { reset(); }

  void reset() override {
    conv1 = register_module("conv1", Conv1d(k_, 64, 1));
    conv2 = register_module("conv2", Conv1d(64, 128, 1));
    conv3 = register_module("conv3", Conv1d(128, 1024, 1));
    fc1 = register_module("fc1", Linear(1024, 512));
    fc2 = register_module("fc2", Linear(512, 256));
    fc3 = register_module("fc3", Linear(256, k_ * k_));
    bn1 = register_module("bn1", BatchNorm1d(64));
    bn2 = register_module("bn2", BatchNorm1d(128));
    bn3 = register_module("bn3", BatchNorm1d(1024));
    bn4 = register_module("bn4", BatchNorm1d(512));
    bn5 = register_module("bn5", BatchNorm1d(256));
    const at::NoGradGuard no_grad;
    fc3->weight.zero_();
    fc3->bias.copy_(at::eye(k_).flatten());
  }

  // [batch, k, number] -> [batch, k, k]
  at::Tensor forward(const at::Tensor& points) {
    auto x = activated(conv1, bn1, points);
    x = activated(conv2, bn2, x);
    x = over_points(activated(conv3, bn3, x));
    x = activated(fc1, bn4, x);
    x = activated(fc2, bn5, x);
    return fc3->forward(x).view({-1, k_, k_});
  }

 private:
  std::int64_t k_;
  Conv1d conv1{nullptr}, conv2{nullptr}, conv3{nullptr};
  Linear fc1{nullptr}, fc2{nullptr}, fc3{nullptr};
  BatchNorm1d bn1{nullptr}, bn2{nullptr}, bn3{nullptr}, bn4{nullptr}, bn5{nullptr};
};

PointNetImpl::PointNetImpl(const PointNetOptions& options) : Cloneable("PointNet"), options_(options) {
  reset();
}

void PointNetImpl::reset() {
  stn = register_module("stn", std::make_shared<PointNetTransformImpl>(3));
  conv1 = register_module("conv1", Conv1d(3, 64, 1));
  conv2 = register_module("conv2", Conv1d(64, 64, 1));
  if (options_.feature_transform) fstn = register_module("fstn", std::make_shared<PointNetTransformImpl>(64));
  conv3 = register_module("conv3", Conv1d(64, 64, 1));
  conv4 = register_module("conv4", Conv1d(64, 128, 1));
  conv5 = register_module("conv5", Conv1d(128, 1024, 1));
  bn1 = register_module("bn1", BatchNorm1d(64));
  bn2 = register_module("bn2", BatchNorm1d(64));
  bn3 = register_module("bn3", BatchNorm1d(64));
  bn4 = register_module("bn4", BatchNorm1d(128));
  bn5 = register_module("bn5", BatchNorm1d(1024));
  fc1 = register_module("fc1", Linear(1024, 512));
  fc2 = register_module("fc2", Linear(512, 256));
  fc3 = register_module("fc3", Linear(256, options_.num_classes));
  bn6 = register_module("bn6", BatchNorm1d(512));
  bn7 = register_module("bn7", BatchNorm1d(256));
  dropout = register_module("dropout", torch::nn::Dropout(options_.dropout));
}

std::tuple<at::Tensor, at::Tensor> PointNetImpl::forward(const at::Tensor& points) {
  if (points.dim() != 3 || points.size(1) != 3) {
    throw_error<ArgumentError>(
        "PointNet: expected points [batch, 3, number], got a tensor of {} dimensions{}", points.dim(),
        points.dim() == 3 ? fmt::format(" with {} coordinates", points.size(1)) : "");
  }
  auto x = transformed(points, stn->forward(points));
  x = activated(conv2, bn2, activated(conv1, bn1, x));
  at::Tensor feature_transform;
  if (fstn) {
    feature_transform = fstn->forward(x);
    x = transformed(x, feature_transform);
  }
  x = activated(conv4, bn4, activated(conv3, bn3, x));
  x = over_points(activated(conv5, bn5, x));
  x = dropout->forward(activated(fc1, bn6, x));
  x = dropout->forward(activated(fc2, bn7, x));
  return {fc3->forward(x), feature_transform};
}

at::Tensor feature_transform_regularizer(const at::Tensor& transform) {
  const auto identity = at::eye(transform.size(1), transform.options());
  return (identity - at::bmm(transform, transform.transpose(1, 2))).square().sum({1, 2}).mean();
}

}  // namespace lockstep::models
