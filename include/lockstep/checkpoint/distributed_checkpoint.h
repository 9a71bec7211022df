// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/comm/process_group.h>
#include <lockstep/serialize/value.h>

/// The folders of PyTorch's `torch.distributed.checkpoint`: pieces of tensors in several files, and a table
/// of them.
namespace lockstep::distributed_checkpoint {

/// Reads what it is asked for, whatever ranks and pieces it was written by. Errors are CheckpointErrors
/// naming the file. Any thread may use a const one.
class Reader {
 public:
  /// Reads and checks the table (`.metadata`) only.
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
  /// Everything, nested as it was saved.
  Dict read_all() const;

 private:
  class Table;
  std::unique_ptr<const Table> table_;
};

/// Reader(folder).read_all(). Python: `dcp.load`, or `dcp_to_torch_save` and `torch.load`.
Dict load(const std::filesystem::path& folder);

/// Writes a folder that Python's `dcp.load` opens: each rank of `group` writes a share of the entries, all
/// having the same `contents` (without a group, this process writes all). Collective. The table comes last:
/// without it the folder is no checkpoint. Throws CheckpointError on all ranks alike. Python: `dcp.save`.
void save(const Dict& contents, const std::filesystem::path& folder,
          const std::optional<ProcessGroup>& group = std::nullopt);

}  // namespace lockstep::distributed_checkpoint
