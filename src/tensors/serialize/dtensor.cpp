// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/dtensor.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "base/throw_error.h"
#include "serialize/plain_values.h"

namespace lockstep::serialize {
namespace {

using pickle::Kind;
using pickle::Node;
using pickle::Ref;
using Integers = std::vector<std::int64_t>;

// Keys and values of a state that is searched; far above anything real.
constexpr std::size_t kMostItems = 200;
// Dimensions of a mesh or of a tensor; PyTorch's tensors have at most as many.
constexpr std::size_t kMostDimensions = 64;
constexpr std::string_view kPlacements = "torch.distributed.tensor.placement_types ";

[[noreturn]] void fail_unknown(std::string_view what) {
  throw_error<CheckpointError>(
      "the checkpoint has a DTensor whose {} is described in a way that Lockstep does not know; save it with "
      "Python's torch.distributed.checkpoint, which Lockstep reads",
      what);
}

// A DTensor's objects, read where they are needed.
class DTensorReader {
 public:
  DTensorReader(const pickle::Pickle& pickle, const std::function<Value(Ref)>& value)
      : pickle_(pickle), value_(value) {}

  Value read(Ref state) const {
    const auto slots = slots_of(state);
    const auto local = value_(entry(slots, "_local_tensor"));
    const auto& tensor = local.as_tensor();
    const auto spec = state_of(entry(slots, "_spec"), "placement");
    const auto size = int_list(value_(argument(entry(spec, "tensor_meta"), 0)));
    check_size(size);
    const auto part = part_of(spec, size);
    if (tensor.sizes() != part.size) {
      throw_error<CheckpointError>(
          "the checkpoint has a DTensor whose part has the shape [{}] instead of [{}]",
          fmt::join(tensor.sizes(), ", "), fmt::join(part.size, ", "));
    }
    if (part.size == size) return tensor;
    ShardedTensor made{.size = size, .dtype = tensor.scalar_type()};
    if (tensor.numel() > 0) made.local_shards.push_back({.tensor = tensor, .shard_offsets = part.offsets});
    return made;
  }

 private:
  struct Part {
    Integers size;
    Integers offsets;
  };

  // The dict of the slots: (None, {name: value}).
  Ref slots_of(Ref state) const {
    const Node& node = pickle_[state];
    if (node.kind != Kind::tuple || node.items.size() != 2) fail_unknown("state");
    return node.items[1];
  }

  static void check_size(const Integers& size) {
    std::int64_t count = 1;
    for (const auto length : size) {
      if (length < 0 || __builtin_mul_overflow(count, std::max<std::int64_t>(length, 1), &count))
        fail_unknown("shape");
    }
  }

  // What BUILD gave an object.
  Ref state_of(Ref object, std::string_view what) const {
    const Node& node = pickle_[object];
    if (node.kind != Kind::call || node.state == pickle::kNoRef) fail_unknown(what);
    return node.state;
  }

  // kNoRef without the key.
  Ref find(Ref dict, std::string_view key) const {
    const Node& node = pickle_[dict];
    if (node.kind != Kind::dict || node.items.size() > kMostItems) fail_unknown("state");
    for (std::size_t i = 0; i + 1 < node.items.size(); i += 2) {
      const Node& found = pickle_[node.items[i]];
      if (found.kind == Kind::text && found.text == key) return node.items[i + 1];
    }
    return pickle::kNoRef;
  }
  Ref entry(Ref dict, std::string_view key) const {
    const auto found = find(dict, key);
    if (found == pickle::kNoRef) fail_unknown(key);
    return found;
  }

  Ref argument(Ref call, std::size_t index) const {
    const Node& node = pickle_[call];
    if (node.kind != Kind::call || pickle_[node.args].items.size() <= index) fail_unknown("shape");
    return pickle_[node.args].items[index];
  }

  const std::vector<Ref>& items(Ref list, std::string_view what) const {
    const Node& node = pickle_[list];
    if (node.kind != Kind::tuple && node.kind != Kind::list) fail_unknown(what);
    if (node.items.size() > kMostDimensions) fail_unknown(what);
    return node.items;
  }
  Integers integers(Ref list, std::string_view what) const {
    auto found = int_list(value_(list));
    if (found.size() > kMostDimensions) fail_unknown(what);
    return found;
  }

  // The ranks in a dimension of the mesh: their number, or those of the dimensions that it was made of.
  std::int64_t ranks_in(Ref shape) const {
    const auto sizes =
        pickle_[shape].kind == Kind::integer ? Integers{pickle_[shape].integer} : integers(shape, "mesh");
    std::int64_t ranks = 1;
    for (const auto size : sizes) {
      if (size < 1 || __builtin_mul_overflow(ranks, size, &ranks)) fail_unknown("mesh");
    }
    return ranks;
  }

  // The ranks in each dimension of the mesh. Before PyTorch 2.13 a layout has a shape instead of axes.
  Integers mesh_sizes(Ref mesh) const {
    const auto layout = state_of(entry(mesh, "_layout"), "mesh");
    const auto axes = find(layout, "axes");
    const bool has_axes = axes != pickle::kNoRef;
    Integers sizes;
    for (const Ref part : items(has_axes ? axes : entry(layout, "shape"), "mesh"))
      sizes.push_back(ranks_in(has_axes ? entry(state_of(part, "mesh"), "shape") : part));
    return sizes;
  }

  // The dimension that a placement cuts; none for Replicate.
  std::optional<std::int64_t> cut_by(Ref placement) const {
    const Node& node = pickle_[placement];
    if (node.kind != Kind::call) fail_unknown("placement");
    const auto name = pickle_[node.callee].text;
    if (!name.starts_with(kPlacements)) fail_unknown("placement");
    const auto kind = name.substr(kPlacements.size());
    if (kind == "Replicate") return std::nullopt;
    if (kind != "Shard") {
      throw_error<CheckpointError>(
          "the checkpoint has a DTensor with the placement {}, of which a file of one rank cannot be read "
          "alone; save it with Python's torch.distributed.checkpoint, which Lockstep reads",
          kind);
    }
    return value_(entry(state_of(placement, "placement"), "dim")).as_int();
  }

  // Which dimension of the mesh cuts first is fixed here: the first.
  void check_order(Ref spec) const {
    const auto order = find(spec, "shard_order");
    if (order == pickle::kNoRef || pickle_[order].kind == Kind::none) return;
    for (const Ref one : items(order, "order of shards")) {
      if (!std::ranges::is_sorted(integers(argument(one, 1), "order of shards")))
        fail_unknown("order of shards");
    }
  }

  Part part_of(Ref spec, const Integers& size) const {
    check_order(spec);
    const auto mesh = state_of(entry(spec, "mesh"), "mesh");
    const auto ranks = mesh_sizes(mesh);
    const auto place = integers(entry(mesh, "_coordinate_on_dim"), "mesh");
    const auto& placements = items(entry(spec, "placements"), "placement");
    if (placements.size() != ranks.size() || place.size() != ranks.size()) fail_unknown("mesh");
    Part part{.size = size, .offsets = Integers(size.size(), 0)};
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const auto cut = cut_by(placements[i]);
      if (!cut) continue;
      if (*cut < 0 || std::cmp_greater_equal(*cut, size.size()) || place[i] < 0 || place[i] >= ranks[i]) {
        fail_unknown("placement");
      }
      // As torch.chunk cuts.
      auto& length = part.size[static_cast<std::size_t>(*cut)];
      const auto most = length / ranks[i] + (length % ranks[i] == 0 ? 0 : 1);
      const auto begin = most == 0 || place[i] > length / most ? length : place[i] * most;
      part.offsets[static_cast<std::size_t>(*cut)] += begin;
      length = std::min(most, length - begin);
    }
    return part;
  }

  const pickle::Pickle& pickle_;
  const std::function<Value(Ref)>& value_;
};

}  // namespace

Value read_dtensor(const pickle::Pickle& pickle, Ref state, const std::function<Value(Ref)>& value) {
  return DTensorReader(pickle, value).read(state);
}

}  // namespace lockstep::serialize
