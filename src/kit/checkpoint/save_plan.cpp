// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/save_plan.h"

#include <algorithm>
#include <map>

#include <ATen/Functions.h>
#include <fmt/ranges.h>

#include <lockstep/serialize/torch_file.h>

#include "base/throw_error.h"
#include "checkpoint/shard_coverage.h"
#include "checkpoint/share.h"
#include "serialize/dtypes.h"

namespace lockstep::distributed_checkpoint {
namespace {

enum class LeafKind : std::uint8_t { object, tensor, sharded };

template <typename... Args>
[[noreturn]] void refuse(const std::string& name, fmt::format_string<Args...> format, Args&&... args) {
  throw_error<CheckpointError>("'{}' {}", name, fmt::format(format, std::forward<Args>(args)...));
}

void check_data(const std::string& name, const at::Tensor& tensor) {
  const bool fits = tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_meta() &&
                    !tensor.is_quantized() && serialize::find_dtype(tensor.scalar_type()) != nullptr;
  if (!fits) refuse(name, "is not a tensor that a distributed checkpoint can hold");
}

void check_shard(const std::string& name, const ShardedTensor& whole, const ShardedTensor::Shard& shard) {
  check_data(name, shard.tensor);
  const auto part = fmt::format("has a part [{}] at [{}], ", fmt::join(shard.tensor.sizes(), ", "),
                                fmt::join(shard.shard_offsets, ", "));
  const auto dtype = serialize::dtype_of(whole);
  if (shard.tensor.scalar_type() != dtype) {
    refuse(name, "{}of {} instead of {}; all parts must be of the {}", part,
           c10::toString(shard.tensor.scalar_type()), c10::toString(*dtype),
           whole.dtype ? "ShardedTensor's dtype" : "first one's dtype");
  }
  bool within = shard.shard_offsets.size() == whole.size.size() &&
                std::cmp_equal(shard.tensor.dim(), whole.size.size());
  for (std::size_t i = 0; within && i < whole.size.size(); ++i) {
    const auto offset = shard.shard_offsets[i];
    within = offset >= 0 && offset <= whole.size[i] &&
             shard.tensor.size(static_cast<std::int64_t>(i)) <= whole.size[i] - offset;
  }
  if (!within) refuse(name, "{}which is not within [{}]", part, fmt::join(whole.size, ", "));
}

std::string digest_of_data(const at::Tensor& tensor) {
  const auto data = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
  return checkpointing::digest_of({static_cast<const char*>(data.const_data_ptr()), data.nbytes()});
}

Tuple describe_piece(const Sizes& offsets, const at::Tensor& part) {
  return {Size{offsets}, Size{part.sizes().vec()}, Size{part.strides().vec()}};
}

// (path, kind, dtype, sizes, pieces, digest), a piece being (offsets, sizes, strides). The dtype is None
// where this rank does not know it, the digest is of what ranks should have alike.
Tuple describe_one(const Leaf& leaf, bool alone) {
  const auto name = name_of(leaf.path);
  Tuple described{leaf.path};
  const auto add = [&](LeafKind kind, std::optional<at::ScalarType> dtype, Sizes sizes, List pieces,
                       const std::string& digest) {
    described.items.insert(described.items.end(), {static_cast<int>(kind), dtype ? Value(*dtype) : Value(),
                                                   Size{std::move(sizes)}, std::move(pieces), digest});
  };
  if (const auto* sharded = leaf.value->get_if<ShardedTensor>()) {
    if (std::ranges::any_of(sharded->size, [](auto each) { return each < 0; }))
      refuse(name, "has a size below 0");
    if (sharded->dtype && serialize::find_dtype(*sharded->dtype) == nullptr)
      refuse(name, "is of a dtype that cannot be saved");
    List pieces;
    for (const auto& shard : sharded->local_shards) {
      check_shard(name, *sharded, shard);
      pieces.items.emplace_back(describe_piece(shard.shard_offsets, shard.tensor));
    }
    add(LeafKind::sharded, serialize::dtype_of(*sharded), sharded->size, std::move(pieces), "");
  } else if (is_tensor(*leaf.value)) {
    const auto& tensor = leaf.value->as_tensor();
    check_data(name, tensor);
    const auto sizes = tensor.sizes().vec();
    add(LeafKind::tensor, tensor.scalar_type(), sizes, {describe_piece(Sizes(sizes.size(), 0), tensor)},
        alone ? "" : digest_of_data(tensor));
  } else {
    add(LeafKind::object, {}, {}, {}, alone ? "" : checkpointing::digest_of(save_bytes(*leaf.value)));
  }
  return described;
}

struct Described {
  explicit Described(const Value& value)
      : path(*value.as_items()[0].get_if<Tuple>()),
        kind(static_cast<LeafKind>(value.as_items()[1].as_int())),
        sizes(value.as_items()[3].get_if<Size>()->sizes),
        digest(value.as_items()[5].as_string()) {
    if (const auto* known = value.as_items()[2].get_if<at::ScalarType>()) dtype = *known;
    for (const auto& piece : value.as_items()[4].as_items()) {
      pieces.push_back({.offsets = piece.as_items()[0].get_if<Size>()->sizes,
                        .sizes = piece.as_items()[1].get_if<Size>()->sizes,
                        .strides = piece.as_items()[2].get_if<Size>()->sizes});
    }
  }
  std::string shown() const {
    if (kind == LeafKind::object) return "no tensor";
    return fmt::format("a {}tensor of {} [{}]", kind == LeafKind::sharded ? "sharded " : "",
                       dtype ? c10::toString(*dtype) : "any dtype", fmt::join(sizes, ", "));
  }
  bool agrees(const Described& other) const {
    const bool same_dtype = !dtype || !other.dtype || *dtype == *other.dtype;
    return kind == other.kind && same_dtype && sizes == other.sizes;
  }
  Tuple path;
  LeafKind kind;
  Sizes sizes;
  std::optional<at::ScalarType> dtype = {};  // of a tensor, where it is known
  std::vector<Piece> pieces;
  std::string digest;
};

using Ranks = std::vector<std::size_t>;

// An entry as the ranks have it.
struct Merged {
  Described described;
  std::size_t told_by;    // the rank that `described` is of
  std::size_t last_rank;  // that has it
  std::map<std::pair<Sizes, Sizes>, std::size_t> known{};
  std::vector<Ranks> owners{};  // of each piece; of an object's only one
  bool differs = false;         // what ranks should have alike
};

class Planner {
 public:
  void add(std::size_t rank, const Value& description) {
    for (const auto& item : description.as_items()) {
      const Described own(item);
      const auto name = name_of(own.path);
      const auto [place, is_new] = places_.try_emplace(name, all_.size());
      if (is_new) {
        all_.emplace_back(name, Merged{.described = own, .told_by = rank, .last_rank = rank});
        all_.back().second.described.pieces.clear();
      }
      auto& merged = all_[place->second].second;
      if (!is_new && merged.last_rank == rank)
        refuse(name, "is the name of two entries on rank {}; rename one", rank);
      merged.last_rank = rank;
      auto& there = merged.described;
      if (!there.agrees(own)) {
        refuse(name, "is {} on rank {}, but {} on rank {}; it must be alike on all ranks that have it",
               there.shown(), merged.told_by, own.shown(), rank);
      }
      if (!there.dtype && own.dtype) {
        there.dtype = own.dtype;
        merged.told_by = rank;
      }
      merged.differs = merged.differs || own.digest != there.digest;
      add_pieces(merged, rank, own);
    }
  }

  SavePlan finish(std::size_t ranks) {
    SavePlan plan;
    std::vector<std::uint64_t> load(ranks, 0);
    const auto assign = [&](std::size_t entry, std::size_t piece, std::size_t rank) {
      load[rank] += bytes_of_piece(all_[entry].second, piece);
      plan.assignments.push_back({.entry = entry, .piece = piece, .rank = rank});
    };
    const auto each = [&](const auto& action) {
      for (std::size_t entry = 0; entry < all_.size(); ++entry) {
        const auto& owners = all_[entry].second.owners;
        for (std::size_t piece = 0; piece < owners.size(); ++piece) action(entry, piece, owners[piece]);
      }
    };
    for (auto& [name, merged] : all_) {
      complete(name, merged);
      // All that differ from one rank: together they are a state that some rank was in.
      if (!merged.differs) continue;
      for (auto& owners : merged.owners) owners.resize(1);
    }
    each([&](auto entry, auto piece, const Ranks& owners) {
      if (owners.size() == 1) assign(entry, piece, owners[0]);
    });
    each([&](auto entry, auto piece, const Ranks& owners) {
      if (owners.size() > 1)
        assign(entry, piece, *std::ranges::min_element(owners, {}, [&](auto r) { return load[r]; }));
    });
    std::ranges::sort(plan.assignments, {},
                      [](const Assignment& one) { return std::pair(one.entry, one.piece); });
    for (auto& [name, merged] : all_) {
      auto& whole = merged.described;
      plan.entries.emplace_back(name, Entry{.is_tensor = whole.kind != LeafKind::object,
                                            .dtype = whole.dtype.value_or(at::kFloat),
                                            .sizes = std::move(whole.sizes),
                                            .pieces = std::move(whole.pieces),
                                            .place = {},
                                            .path = std::move(whole.path)});
    }
    return plan;
  }

 private:
  static void add_pieces(Merged& merged, std::size_t rank, const Described& own) {
    const auto add_owner = [&](std::size_t piece) {
      if (merged.owners.size() <= piece) merged.owners.resize(piece + 1);
      merged.owners[piece].push_back(rank);
    };
    if (own.kind == LeafKind::object) return add_owner(0);
    // Without an element there is nothing to share out: one rank writes the tensor as it is.
    if (element_count(own.sizes) == 0) {
      if (merged.described.pieces.empty()) {
        merged.described.pieces.push_back({.offsets = Sizes(own.sizes.size(), 0), .sizes = own.sizes});
        if (!own.pieces.empty()) merged.described.pieces.back().strides = own.pieces.front().strides;
      }
      return add_owner(0);
    }
    for (const auto& piece : own.pieces) {
      if (element_count(piece.sizes) == 0) continue;
      const auto [place, is_new] =
          merged.known.try_emplace(std::pair(piece.offsets, piece.sizes), merged.described.pieces.size());
      if (is_new) merged.described.pieces.push_back(piece);
      if (!is_new && merged.owners[place->second].back() == rank) {
        refuse(name_of(own.path), "has the part [{}] at [{}] twice on rank {}", fmt::join(piece.sizes, ", "),
               fmt::join(piece.offsets, ", "), rank);
      }
      add_owner(place->second);
    }
  }

  static void complete(const std::string& name, Merged& merged) {
    const auto& whole = merged.described;
    if (whole.kind == LeafKind::object) return;
    if (!whole.dtype) refuse(name, "is a ShardedTensor without parts on all ranks: give it a dtype");
    if (covers(whole.sizes, whole.pieces)) return;
    refuse(name, "of [{}] is not whole: {}", fmt::join(whole.sizes, ", "),
           coverage_problem(whole.sizes, whole.pieces));
  }

  static std::uint64_t bytes_of_piece(const Merged& merged, std::size_t piece) {
    constexpr std::uint64_t file_around = 1024;
    const auto& whole = merged.described;
    if (whole.kind == LeafKind::object) return file_around;
    const auto& sizes = whole.pieces[piece].sizes;
    return file_around + static_cast<std::uint64_t>(element_count(sizes)) * c10::elementSize(*whole.dtype);
  }

  std::vector<std::pair<std::string, Merged>> all_;
  std::map<std::string, std::size_t> places_;
};

}  // namespace

std::string describe(const std::vector<Leaf>& leaves, bool alone) {
  List described;
  for (const auto& leaf : leaves) described.items.emplace_back(describe_one(leaf, alone));
  return save_bytes(Value(std::move(described)));
}

SavePlan plan_save(const std::vector<std::string>& descriptions) {
  Planner planner;
  for (std::size_t rank = 0; rank < descriptions.size(); ++rank)
    planner.add(rank, load_bytes(descriptions[rank]));
  return planner.finish(descriptions.size());
}

Value data_of(const Entry& entry, std::size_t piece, const Value& value) {
  if (!entry.is_tensor) return value;
  const auto* sharded = value.get_if<ShardedTensor>();
  if (sharded == nullptr) return value.as_tensor().detach();
  const auto& wanted = entry.pieces[piece];
  for (const auto& shard : sharded->local_shards) {
    if (shard.shard_offsets == wanted.offsets && shard.tensor.sizes() == at::IntArrayRef(wanted.sizes))
      return shard.tensor.detach();
  }
  return at::empty(wanted.sizes, entry.dtype);  // of a tensor without elements
}

}  // namespace lockstep::distributed_checkpoint
