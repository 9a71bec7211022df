// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <utility>

#include <torch/nn/module.h>

#include <lockstep/base/error.h>

namespace lockstep::models {

/// A layer of a network that assignment replaces as in Python: `net->fc = torch::nn::Linear(512, 10);` makes the
/// new layer a child of `net` too, so that parameters(), state dicts and wrappers have it. Otherwise it is a
/// `Holder`, such as torch::nn::Linear. Replace layers before an optimizer or a wrapper takes the parameters.
template <typename Holder>
class Replaceable : public Holder {
 public:
  /// An empty holder.
  Replaceable() : Holder(nullptr) {}
  /// The same layer, in a copy of a network.
  Replaceable(const Replaceable& other) : Holder(other) {}
  /// Replaces the layer as the assignment of a holder does.
  Replaceable& operator=(const Replaceable& other) {
    if (this != &other) set(other);
    return *this;
  }
  /// Replaces the layer. Throws ArgumentError for an empty holder, and in a network that a copy constructor has made:
  /// its layers are those of the other network; clone() makes layers of its own.
  Replaceable& operator=(Holder layer) {
    set(std::move(layer));
    return *this;
  }
  ~Replaceable() = default;

  /// Registers the first layer in the network that has this member. For its reset().
  void begin(torch::nn::Module& owner, const std::string& name, Holder layer) {
    owner.register_module(name, layer);
    static_cast<Holder&>(*this) = std::move(layer);
    owner_ = &owner;
    name_ = name;
  }

 private:
  void set(Holder layer) {
    if (owner_ == nullptr && !this->is_empty()) {
      throw ArgumentError(
          "a layer of a copied network cannot be replaced, since the copy shares the layers of the other one; "
          "call clone() on the network, and replace the layer of the clone");
    }
    if (owner_ != nullptr) {
      if (layer.is_empty()) {
        throw ArgumentError("the new layer " + name_ +
                            " is empty; assign a layer, such as torch::nn::Linear(512, 10)");
      }
      owner_->replace_module(name_, layer);
    }
    static_cast<Holder&>(*this) = std::move(layer);
  }

  torch::nn::Module* owner_ = nullptr;  // the network with this member; null in a copy that had no reset()
  std::string name_;
};

}  // namespace lockstep::models
