// SPDX-License-Identifier: BSD-3-Clause
#include "tensor_parallel/sharded_dropout.h"

// A Dropout's forward is not virtual and gives at::dropout nothing of its own but p. So the layer's p moves
// by some units in the last place to a number that no other layer has, and the kernel below finds the layer
// by it: one look-up per call once there is such a layer. It computes with the p that the layer had.
#include <atomic>
#include <bit>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/dropout_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/dropout.h>

#include <lockstep/base/mutex.h>
#include <lockstep/runtime/default_group.h>

#include "intercept/composite_kernels.h"

namespace lockstep::tensor_parallel {
namespace {

using at::Tensor;

// More than arithmetic on a p rounds.
constexpr std::uint64_t kFirstDistance = 4096;

struct ShardedLayer {
  std::weak_ptr<torch::nn::Module> module;
  double p;
  int rank;
};

class LayerTable {
 public:
  // The p by which the layer is found.
  double add(ShardedLayer layer) {
    const WriterLock lock(mutex_);
    std::erase_if(layers_, [](const auto& item) { return item.second.module.expired(); });
    auto key = std::bit_cast<std::uint64_t>(layer.p) - kFirstDistance;
    while (layers_.contains(key)) --key;
    layers_.emplace(key, std::move(layer));
    used_.store(true, std::memory_order_release);
    return std::bit_cast<double>(key);
  }

  std::optional<ShardedLayer> find(double p) {
    if (!used_.load(std::memory_order_acquire)) return std::nullopt;
    const ReaderLock lock(mutex_);
    const auto found = layers_.find(std::bit_cast<std::uint64_t>(p));
    if (found == layers_.end()) return std::nullopt;
    return found->second;
  }

 private:
  std::atomic<bool> used_{false};
  SharedMutex mutex_;
  std::unordered_map<std::uint64_t, ShardedLayer> layers_ LOCKSTEP_GUARDED_BY(mutex_);
};

// Never destroyed, like the kernels below.
LayerTable& layer_table() {
  static auto& layers = *new LayerTable;
  return layers;
}

// Every rank draws one number from its default stream, so these streams stay equal.
at::Generator generator_of(int rank, at::Device device) {
  auto generator = default_generator();
  std::uint64_t seed = 0;
  {
    const std::lock_guard lock(generator.mutex());
    seed = at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
  }
  seed += 0x9E3779B97F4A7C15ULL * static_cast<std::uint64_t>(rank);
  if (device.is_cpu()) return at::make_generator<at::CPUGeneratorImpl>(seed);
  auto own = at::globalContext().defaultGenerator(device).clone();
  own.set_current_seed(seed);
  return own;
}

Tensor scaled_mask(const Tensor& input, const ShardedLayer& layer) {
  const c10::NoGradGuard no_gradients;
  const auto mask = at::empty_like(input).bernoulli_(1 - layer.p, generator_of(layer.rank, input.device()));
  return layer.p == 1 ? mask : mask.div_(1 - layer.p);
}

Tensor dropout(const Tensor& input, double p, bool train) {
  const auto layer = train ? layer_table().find(p) : std::nullopt;
  return layer ? input * scaled_mask(input, *layer) : at::native::dropout(input, p, train);
}

Tensor& dropout_in_place(Tensor& input, double p, bool train) {
  const auto layer = train ? layer_table().find(p) : std::nullopt;
  return layer ? input.mul_(scaled_mask(input, *layer)) : at::native::dropout_(input, p, train);
}

// Fused attention draws in its kernel, from the device's default generator. While this lives, that is one of
// the rank's own.
class OwnStream {
 public:
  OwnStream(int rank, at::Device device) : generator_(at::globalContext().defaultGenerator(device)) {
    const auto seed = generator_of(rank, device).current_seed();
    const std::lock_guard lock(generator_.mutex());
    state_ = generator_.get_state();
    generator_.set_current_seed(seed);
  }
  ~OwnStream() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state_);
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

 private:
  at::Generator generator_;
  Tensor state_;
};

// On the CPU attention calls at::dropout.
Tensor attention_on_device(const Tensor& query, const Tensor& key, const Tensor& value,
                           const std::optional<Tensor>& mask, double p, bool is_causal,
                           std::optional<double> scale, bool enable_gqa) {
  const auto layer = layer_table().find(p);
  std::optional<OwnStream> stream;
  if (layer) stream.emplace(layer->rank, query.device());
  return at::native::scaled_dot_product_attention(query, key, value, mask, layer ? layer->p : p, is_causal,
                                                  scale, enable_gqa);
}

[[gnu::used]] const auto& dropout_kernel = intercept::replace_composite("dropout", dropout);
[[gnu::used]] const auto& in_place_kernel = intercept::replace_composite("dropout_", dropout_in_place);
[[gnu::used]] const auto& attention_kernel = intercept::replace_composite(
    "scaled_dot_product_attention", attention_on_device, intercept::Devices::accelerators);

}  // namespace

void draw_apart(const std::shared_ptr<torch::nn::Module>& dropout, const ProcessGroup& group) {
  auto& options = dropout->as<torch::nn::DropoutImpl>()->options;
  const auto p = options.p();
  if (p == 0 || layer_table().find(p)) return;
  options.p(layer_table().add({dropout, p, group.rank()}));
}

}  // namespace lockstep::tensor_parallel
