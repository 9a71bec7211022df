// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include <lockstep/comm/process_group.h>
#include <lockstep/serialize/value.h>

/// PyTorch's distributed checkpoints (`torch.distributed.checkpoint`): folders with the parts of tensors in
/// several files, and their metadata in `.metadata`.
namespace lockstep::distributed_checkpoint {

/// Reads entries, or parts of them, independent of the number of ranks that wrote them. Every error is a
/// CheckpointError that names the file, or a CheckpointReadError. Const functions are thread-safe.
class Reader {
 public:
  /// Reads and checks the metadata, and that every file exists and is as long as the metadata requires.
  explicit Reader(const std::filesystem::path& folder);
  Reader(Reader&&) noexcept;
  Reader& operator=(Reader&&) noexcept;
  ~Reader();

  /// The names of all entries: nested keys and list indices, joined by dots.
  std::vector<std::string> keys() const;
  /// Whether the key holds a tensor. Throws CheckpointError for a key that does not exist.
  bool is_tensor(const std::string& key) const;
  /// The shape of the whole tensor.
  std::vector<std::int64_t> shape(const std::string& key) const;
  /// The dtype of the tensor.
  at::ScalarType dtype(const std::string& key) const;

  /// A whole entry, assembled from its pieces.
  Value read(const std::string& key) const;
  /// The part of a tensor of shape `sizes` at `offsets`. Reads only the pieces that overlap it. Throws
  /// ArgumentError when the part is outside the tensor.
  at::Tensor read_part(const std::string& key, const std::vector<std::int64_t>& offsets,
                       const std::vector<std::int64_t>& sizes) const;
  /// All entries, nested as they were saved, with tensors on `map_location`. at::kMeta: the data is not read.
  Dict read_all(at::Device map_location = at::kCPU) const;
  /// Reads an entry into an existing value of the same shape, as load(contents, folder) does.
  void read_into(const std::string& key, Value& value) const;
  /// Throws unless the entry exists and, if `value` is a tensor, has its shape. An empty dict always fits.
  void check_fits(const std::string& key, const Value& value) const;
  /// Verifies the checksums, shapes and dtypes of all pieces, or of every `shares`-th piece starting at piece
  /// `share`. Needs little memory.
  void verify(std::size_t share = 0, std::size_t shares = 1) const;

 private:
  class Contents;
  std::unique_ptr<const Contents> contents_;
};

/// Loads everything, in this process alone: Reader(folder).read_all(). Python: `dcp_to_torch_save` and `torch.load`.
Dict load(const std::filesystem::path& folder);

/// Arguments of load().
struct LoadOptions {
  /// The folder, for the call without it: `{.checkpoint_id = "step100"}`.
  std::filesystem::path checkpoint_id = {};
  /// The ranks that load together. Default: the default group; without a context of init(), this process.
  std::optional<ProcessGroup> process_group = {};
  /// This process loads alone. Excludes process_group.
  bool no_dist = false;
};

/// Loads the entries named in `contents` into its values. Collective over options.process_group. Python:
/// `dcp.load(state_dict, checkpoint_id=folder)`.
///
/// Tensor data is copied into the existing tensors, converting dtype and device. Each rank reads its
/// local_shards of a ShardedTensor, independent of the number of ranks that saved it. Other values are
/// replaced. An empty dict receives all entries below its name, which loads the "state" of an optimizer
/// before its first step. Entries that only the folder has are ignored. Throws CheckpointError on all ranks;
/// names and shapes are checked first, so a mismatch leaves `contents` unchanged. Throws ArgumentError without
/// a folder, for a folder and another checkpoint_id, and in a rank of a launcher that has not called init(),
/// unless `no_dist` is set.
void load(Dict& contents, const std::filesystem::path& folder, const LoadOptions& options = {},
          std::source_location where = std::source_location::current());

/// load() from the folder `options.checkpoint_id`.
inline void load(Dict& contents, const LoadOptions& options,
                 std::source_location where = std::source_location::current()) {
  load(contents, options.checkpoint_id, options, where);
}
/// Throws ArgumentError that names an entry of `contents` which is not a tensor: load() could replace it only in a
/// dict that is lost after the call.
void check_only_tensors(const Dict& contents, std::source_location where = std::source_location::current());

/// Loads into the tensors of a dict that is written in the call: `load({{"model", state_dict(net)}}, "step100")`.
/// Throws ArgumentError for any other entry, such as a number or an empty dict, whose value would be lost with the
/// dict: keep the dict in a variable to load these.
template <typename Folder>
  requires std::convertible_to<const Folder&, std::filesystem::path>
void load(Dict&& contents, const Folder& folder, const LoadOptions& options = {},
          std::source_location where = std::source_location::current()) {
  check_only_tensors(contents, where);
  load(contents, std::filesystem::path(folder), options, where);
}
/// load() from the folder `options.checkpoint_id`.
inline void load(Dict&& contents, const LoadOptions& options,
                 std::source_location where = std::source_location::current()) {
  check_only_tensors(contents, where);
  load(contents, options, where);
}

/// Arguments of save().
struct SaveOptions {
  /// The folder, for the call without it: `{.checkpoint_id = "step100"}`.
  std::filesystem::path checkpoint_id = {};
  /// The ranks that save together. Default: the default group; without a context of init(), this process.
  std::optional<ProcessGroup> process_group = {};
  /// This process saves alone, a folder of its own. Excludes process_group.
  bool no_dist = false;
  /// save() returns after the data has reached the disk.
  bool sync = true;
};

/// Saves `contents` as a folder that Python's `dcp.load` opens. Collective over options.process_group.
/// Tensors must not change during the call. Python: `dcp.save(state_dict, checkpoint_id=folder)`.
///
/// Every rank writes its parts of each ShardedTensor. Other entries must be equal on all ranks that have
/// them, and are distributed over these ranks. An existing checkpoint in the folder stays complete until the
/// new one replaces it, even if a rank dies. Throws CheckpointError on all ranks if a rank cannot write, an
/// entry cannot be saved, or the parts of a tensor overlap or leave elements out. Throws ArgumentError in a
/// rank of a launcher that has not called init(), unless `no_dist` is set.
void save(const Dict& contents, const std::filesystem::path& folder, const SaveOptions& options = {},
          std::source_location where = std::source_location::current());

/// save() to the folder `options.checkpoint_id`.
inline void save(const Dict& contents, const SaveOptions& options,
                 std::source_location where = std::source_location::current()) {
  save(contents, options.checkpoint_id, options, where);
}

/// Does not compile: a CheckpointManager saves while training continues. PyTorch: `async_save`.
template <typename Contents = Dict, typename Target = SaveOptions, typename... Rest>
auto async_save(const Contents& /*contents*/, const Target& /*folder*/, const Rest&... /*rest*/) {
  static_assert(sizeof(Target) == 0,
                "use CheckpointManager manager(folder, {.async_save = true}), manager.save(step, contents)");
}

/// The part of a tensor at one coordinate of a device mesh.
struct LocalShape {
  std::vector<std::int64_t> local_shape;    ///< shape of this rank's part
  std::vector<std::int64_t> global_offset;  ///< where the part begins in the whole tensor
};

/// The shape and offset of DTensor's part at `my_coordinate` of a device mesh. placements[i] is the tensor
/// dimension that mesh dimension i splits (PyTorch: `Shard(dim)`), or nullopt for `Replicate()`. Leading
/// parts are larger; the last may be empty. Throws ArgumentError. PyTorch:
/// `compute_local_shape_and_global_offset`.
LocalShape compute_local_shape_and_global_offset(const std::vector<std::int64_t>& global_shape,
                                                 const std::vector<std::int64_t>& mesh_shape,
                                                 const std::vector<std::int64_t>& my_coordinate,
                                                 const std::vector<std::optional<std::int64_t>>& placements);

}  // namespace lockstep::distributed_checkpoint

namespace lockstep {

/// The name under which Python's programs import the module: `dcp::save(state, "step100")`.
namespace dcp = distributed_checkpoint;

}  // namespace lockstep
