// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/comm/process_group.h>
#include <lockstep/serialize/torch_file.h>
#include <lockstep/serialize/value.h>

/// The folders of PyTorch's `torch.distributed.checkpoint`: pieces of tensors in several files, and a table
/// of them.
namespace lockstep::distributed_checkpoint {

/// Reads what it is asked for, whatever ranks and pieces it was written by. Errors are CheckpointErrors
/// naming the file, CheckpointReadError among them. Any thread may use a const one.
class Reader {
 public:
  /// Reads and checks the table (`.metadata`), and that every file is there, long enough for what the table
  /// says.
  explicit Reader(const std::filesystem::path& folder);
  Reader(Reader&&) noexcept;
  Reader& operator=(Reader&&) noexcept;
  ~Reader();

  /// The names of all entries: the keys of nested dicts and lists, joined by dots.
  std::vector<std::string> keys() const;
  bool is_tensor(const std::string& key) const;
  std::vector<std::int64_t> shape(const std::string& key) const;
  at::ScalarType dtype(const std::string& key) const;

  /// A whole entry, put together from its pieces.
  Value read(const std::string& key) const;
  /// A part of a tensor, of shape `sizes`, from `offsets` on: what one rank of a new arrangement needs. Only
  /// the pieces that it touches are read.
  at::Tensor read_part(const std::string& key, const std::vector<std::int64_t>& offsets,
                       const std::vector<std::int64_t>& sizes) const;
  /// Everything, nested as it was saved, tensors on `map_location`. at::kMeta: their data is not read.
  Dict read_all(at::Device map_location = at::kCPU) const;
  /// An entry into a value of the same shape, as load(contents, folder) does.
  void read_into(const std::string& key, Value& value) const;
  /// Throws unless there is such an entry and, where `value` is a tensor, one of that shape. An empty dict
  /// always fits.
  void check_fits(const std::string& key, const Value& value) const;
  /// Compares the checksums of all data, and shapes and dtypes with the table's; or of every `shares`-th
  /// piece from number `share` on. Needs little memory.
  void verify(std::size_t share = 0, std::size_t shares = 1) const;

 private:
  class Contents;
  std::unique_ptr<const Contents> contents_;
};

/// Reader(folder).read_all(). Python: `dcp_to_torch_save` and `torch.load`.
Dict load(const std::filesystem::path& folder);

/// Fills `contents` with what the folder has: data of tensors is copied into those that are there, whatever
/// their dtype and device; of a ShardedTensor each rank gets its local_shards, however many ranks saved it;
/// anything else is replaced. An empty dict takes all that the folder has below its name, if anything: such
/// is the "state" of an optimizer before its first step. Entries that only the folder has are passed over.
/// Throws CheckpointError on all ranks of `group` alike: names and shapes are looked at first, so that
/// `contents` then is as it was. Collective. Python: `dcp.load(state_dict, checkpoint_id=folder)`.
void load(Dict& contents, const std::filesystem::path& folder,
          const std::optional<ProcessGroup>& group = std::nullopt);

/// Writes a folder that Python's `dcp.load` opens. Every rank of `group` (this process alone without one)
/// writes the parts that it has of each ShardedTensor; what else is in `contents` is the same on all ranks
/// that have it, and shared out among them. Tensors must not change meanwhile. Collective.
///
/// A checkpoint that is in the folder stays whole until the new one takes its place, whenever a rank dies.
/// Throws CheckpointError on all ranks alike: a rank cannot write, an entry cannot be saved, or the parts of
/// a tensor overlap or leave something out. Python: `dcp.save`.
void save(const Dict& contents, const std::filesystem::path& folder,
          const std::optional<ProcessGroup>& group = std::nullopt, const SaveOptions& options = {});

/// The part of a tensor that falls to one place of a mesh of ranks.
struct LocalShape {
  std::vector<std::int64_t> local_shape;
  std::vector<std::int64_t> global_offset;
};

/// Where DTensor has the part of the rank at `my_coordinate` of a mesh: placements[i] is the dimension of the
/// tensor that dimension i of the mesh splits (PyTorch: `Shard(dim)`), nullopt where it has copies
/// (`Replicate()`). The first parts are the larger ones; the last may be empty. Throws ArgumentError.
/// PyTorch: `compute_local_shape_and_global_offset`.
LocalShape compute_local_shape_and_global_offset(const std::vector<std::int64_t>& global_shape,
                                                 const std::vector<std::int64_t>& mesh_shape,
                                                 const std::vector<std::int64_t>& my_coordinate,
                                                 const std::vector<std::optional<std::int64_t>>& placements);

}  // namespace lockstep::distributed_checkpoint
