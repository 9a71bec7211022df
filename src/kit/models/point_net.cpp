// SPDX-License-Identifier: BSD-3-Clause

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
    conv1_ = register_module("conv1", Conv1d(k_, 64, 1));
    conv2_ = register_module("conv2", Conv1d(64, 128, 1));
    conv3_ = register_module("conv3", Conv1d(128, 1024, 1));
    fc1_ = register_module("fc1", Linear(1024, 512));
    fc2_ = register_module("fc2", Linear(512, 256));
    fc3_ = register_module("fc3", Linear(256, k_ * k_));
    bn1_ = register_module("bn1", BatchNorm1d(64));
    bn2_ = register_module("bn2", BatchNorm1d(128));
    bn3_ = register_module("bn3", BatchNorm1d(1024));
    bn4_ = register_module("bn4", BatchNorm1d(512));
    bn5_ = register_module("bn5", BatchNorm1d(256));
    const at::NoGradGuard no_grad;
    fc3_->weight.zero_();
    fc3_->bias.copy_(at::eye(k_).flatten());
  }

  // [batch, k, number] -> [batch, k, k]
  at::Tensor forward(const at::Tensor& points) {
    auto x = activated(conv1_, bn1_, points);
    x = activated(conv2_, bn2_, x);
    x = over_points(activated(conv3_, bn3_, x));
    x = activated(fc1_, bn4_, x);
    x = activated(fc2_, bn5_, x);
    return fc3_->forward(x).view({-1, k_, k_});
  }

 private:
  std::int64_t k_;
  Conv1d conv1_{nullptr}, conv2_{nullptr}, conv3_{nullptr};
  Linear fc1_{nullptr}, fc2_{nullptr}, fc3_{nullptr};
  BatchNorm1d bn1_{nullptr}, bn2_{nullptr}, bn3_{nullptr}, bn4_{nullptr}, bn5_{nullptr};
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
  fc1.begin(*this, "fc1", Linear(1024, 512));
  fc2.begin(*this, "fc2", Linear(512, 256));
  fc3.begin(*this, "fc3", Linear(256, options_.num_classes));
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
