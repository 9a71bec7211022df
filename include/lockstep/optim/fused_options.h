// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <utility>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace lockstep::optim {

/// What options of fused optimizers have besides those of LibTorch's optimizer of the same name.
class FusedOptions {
 public:
  virtual ~FusedOptions() = default;

  /// Whether the objective is maximized. PyTorch: `maximize`.
  bool maximize() const noexcept { return maximize_; }
  bool& maximize() noexcept { return maximize_; }
  /// The learning rate as a tensor, or an undefined one where it is a number. PyTorch: `lr` as a Tensor.
  const at::Tensor& lr_tensor() const noexcept { return lr_tensor_; }

  /// Fills the tensor, where there is one, with `lr`. Does not wait for the device.
  void bring_lr(double lr);
  /// Whether the tensor, where there is one, was filled with another number than `lr` last: lr() was set
  /// through LibTorch's options. The optimizers look before each step. After a change of the tensor in place
  /// the number that it was filled with last is not heard; set_lr() always is.
  bool is_lr_behind() const noexcept { return lr_tensor_.defined() && lr_brought_ != lr_number(); }
  /// lr() of LibTorch's options, which is not looked at where there is a tensor that was filled with it.
  virtual double lr_number() const noexcept = 0;

 protected:
  FusedOptions() = default;
  /// Throws ArgumentError unless `lr` has one element, is float32 or, on the CPU, any floating-point type,
  /// and requires no gradient.
  explicit FusedOptions(at::Tensor lr);
  FusedOptions(const FusedOptions&) = default;
  FusedOptions& operator=(const FusedOptions&) = default;

  void set_maximize(bool value) noexcept { maximize_ = value; }
  double tensor_value() const;
  double brought_lr() const noexcept { return lr_brought_; }
  bool has_same_extras(const FusedOptions& other) const noexcept {
    return maximize_ == other.maximize_ && lr_tensor_.is_same(other.lr_tensor_);
  }
  void read_extras(torch::serialize::InputArchive& archive);
  void write_extras(torch::serialize::OutputArchive& archive) const;

 private:
  friend class FusedOptimizer;

  bool maximize_ = false;
  at::Tensor lr_tensor_;
  double lr_brought_ = 0;
};

/// Options of LibTorch's optimizer (`Base`) with those of FusedOptions: what code says about LibTorch's, e.g.
/// `static_cast<torch::optim::AdamOptions&>(group.options()).lr(0.1)`, it may say about these.
template <typename Derived, typename Base>
class FusedOptionsOf : public Base, public FusedOptions {
 public:
  /// LibTorch's options, which are all there is but `maximize` and tensors.
  FusedOptionsOf(const Base& options) : Base(options) {}  // NOLINT: as one stands for the other
  explicit FusedOptionsOf(double lr) : Base(lr) {}
  /// A rate that the step reads from a tensor, on whose device it is: the way to change it in a graph without
  /// capturing again, by set_lr() or in place. A scheduler that asks for the rate waits for the device.
  explicit FusedOptionsOf(at::Tensor lr) : Base(0.0), FusedOptions(std::move(lr)) {
    Base::lr(this->brought_lr());
  }

  using FusedOptions::maximize;
  Derived& maximize(bool value) noexcept {
    this->set_maximize(value);
    return self();
  }
  const double& lr() const noexcept { return Base::lr(); }
  double& lr() noexcept { return Base::lr(); }
  Derived& lr(double value) { return this->set_lr(value), self(); }
  const double& weight_decay() const noexcept { return Base::weight_decay(); }
  double& weight_decay() noexcept { return Base::weight_decay(); }
  Derived& weight_decay(double value) { return Base::weight_decay(value), self(); }

  double lr_number() const noexcept override { return Base::lr(); }
  /// The rate of the next step: what was said last, be it to the tensor, to set_lr() or to LibTorch's
  /// options.
  double get_lr() const override {
    return this->lr_tensor().defined() && !this->is_lr_behind() ? this->tensor_value() : Base::lr();
  }
  void set_lr(const double value) override {
    Base::lr(value);
    this->bring_lr(value);
  }
  void serialize(torch::serialize::InputArchive& archive) override {
    Base::serialize(archive);
    this->read_extras(archive);
  }
  void serialize(torch::serialize::OutputArchive& archive) const override {
    Base plain(*this);
    plain.set_lr(get_lr());
    plain.serialize(archive);
    this->write_extras(archive);
  }

 protected:
  Derived& self() noexcept { return static_cast<Derived&>(*this); }
  bool equals(const Derived& other) const {
    return static_cast<const Base&>(*this) == static_cast<const Base&>(other) && has_same_extras(other);
  }

 private:
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<Derived>(static_cast<const Derived&>(*this));
  }
};

}  // namespace lockstep::optim
