// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <ranges>
#include <set>
#include <system_error>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <lockstep/checkpoint/distributed_checkpoint.h>

#include "base/rank_progress.h"
#include "base/throw_error.h"
#include "checkpoint/distributed_metadata.h"
#include "checkpoint/flatten.h"
#include "checkpoint/shard_coverage.h"
#include "checkpoint/share.h"
#include "comm/call_site.h"
#include "serialize/byte_source.h"
#include "serialize/torch_format.h"

namespace lockstep::distributed_checkpoint {
namespace {

namespace fs = std::filesystem;

Value read_place(const fs::path& folder, const Place& place, const lockstep::LoadOptions& options = {}) {
  const ErrorFile about(folder / place.file);
  const auto source =
      serialize::open_part(folder / place.file, {.offset = place.offset, .length = place.length});
  return serialize::load_source(*source, options);
}

// The steps of `path` below those that make `name`; none where it leads elsewhere.
std::vector<Value> path_below(const std::string& name, const Tuple& path) {
  Tuple front;
  for (const auto& step : path.items) {
    front.items.push_back(step);
    if (name_of(front) == name) return {path.items.begin() + std::ssize(front.items), path.items.end()};
  }
  return {};
}

bool is_empty_dict(const Value& value) { return value.is<Dict>() && value.as_dict().empty(); }

// Metadata may describe more than memory can hold.
at::Tensor make_empty(const fs::path& folder, const Sizes& sizes, at::TensorOptions options) {
  try {
    return at::empty(sizes, options);
  } catch (const c10::Error& error) {
    throw_error<CheckpointReadError>("{}: not enough memory for a tensor of shape [{}]: {}", folder.string(),
                                     fmt::join(sizes, ", "), error.what_without_backtrace());
  }
}

at::Tensor read_piece(const fs::path& folder, const std::string& key, const Entry& entry, const Piece& piece,
                      const lockstep::LoadOptions& options = {}) {
  const auto value = read_place(folder, piece.place, options);
  const auto& tensor = value.as_tensor();
  if (tensor.sizes() == at::IntArrayRef(piece.sizes) && tensor.scalar_type() == entry.dtype)
    return tensor.detach().resolve_conj().resolve_neg();
  throw_error<CheckpointError>(ErrorDetails{.file = folder / piece.place.file},
                               "{}: a piece of '{}' is {} [{}], but the metadata says {} [{}]",
                               (folder / piece.place.file).string(), key, c10::toString(tensor.scalar_type()),
                               fmt::join(tensor.sizes(), ", "), c10::toString(entry.dtype),
                               fmt::join(piece.sizes, ", "));
}

[[noreturn]] void refuse_unfinished(const fs::path& folder) {
  const auto files = data_files(folder).size();
  if (files == 0)
    throw_error<CheckpointError>("{}: it is not a distributed checkpoint: it has no {}", folder.string(),
                                 kMetadataName);
  throw_error<CheckpointError>(
      "{}: the save was not completed: it has files of ranks ({}), but no {}, which is "
      "written last",
      folder.string(), files, kMetadataName);
}

// Copies the overlap of a piece and a part.
void copy_overlap(const at::Tensor& part, const Sizes& offsets, const at::Tensor& piece,
                  const Sizes& piece_offsets) {
  auto to = part;
  auto from = piece;
  for (std::int64_t i = 0; i < part.dim(); ++i) {
    const auto d = static_cast<std::size_t>(i);
    const auto first = std::max(offsets[d], piece_offsets[d]);
    const auto last = std::min(offsets[d] + part.size(i), piece_offsets[d] + piece.size(i));
    to = to.narrow(i, first - offsets[d], last - first);
    from = from.narrow(i, first - piece_offsets[d], last - first);
  }
  to.copy_(from);
}

void check_mesh(std::size_t dimensions, const std::vector<std::int64_t>& mesh_shape,
                const std::vector<std::int64_t>& my_coordinate,
                const std::vector<std::optional<std::int64_t>>& placements) {
  if (mesh_shape.size() != my_coordinate.size() || mesh_shape.size() != placements.size()) {
    throw_error<ArgumentError>(
        "a mesh of {} dimensions needs as many coordinates and placements, not {} and {}", mesh_shape.size(),
        my_coordinate.size(), placements.size());
  }
  for (std::size_t i = 0; i < mesh_shape.size(); ++i) {
    if (mesh_shape[i] < 1 || my_coordinate[i] < 0 || my_coordinate[i] >= mesh_shape[i]) {
      throw_error<ArgumentError>("coordinate {} is not within dimension {} of the mesh, which has {}",
                                 my_coordinate[i], i, mesh_shape[i]);
    }
    if (placements[i] && (*placements[i] < 0 || std::cmp_greater_equal(*placements[i], dimensions))) {
      throw_error<ArgumentError>("a tensor of {} dimensions cannot be split along dimension {}", dimensions,
                                 *placements[i]);
    }
  }
}

}  // namespace

class Reader::Contents {
 public:
  explicit Contents(fs::path given) : folder(std::move(given)) {
    const ErrorFile about(folder);
    auto metadata = read_named(folder);
    entries = std::move(metadata.entries);
    structure = std::move(metadata.structure);
    for (std::size_t i = 0; i < entries.size(); ++i) places.emplace(entries[i].first, i);
    check_lengths();
  }

  const Entry& find(const std::string& key) const {
    const auto found = places.find(key);
    if (found != places.end()) return entries[found->second].second;
    throw_error<CheckpointError>("{}: there is no entry '{}'", folder.string(), key);
  }

  const Entry& find_tensor(const std::string& key) const {
    const auto& entry = find(key);
    if (entry.is_tensor) return entry;
    throw_error<CheckpointError>("{}: entry '{}' is not a tensor", folder.string(), key);
  }

  // The entries that have a path, nested as they were saved; an empty dict if there are none.
  // `known_structure` may be nullptr.
  Value nested(const Value* known_structure, const std::function<Value(const std::string&)>& read,
               const std::function<std::vector<Value>(const Tuple&)>& path_of) const {
    std::set<std::string> known;
    const auto read_one = [&](const std::string& key) {
      known.insert(key);
      return read(key);
    };
    Value root = Dict();
    if (known_structure != nullptr) root = fill_structure(*known_structure, read_one);
    // Entries that rank 0 did not have when it saved, or all of them where Python did.
    for (const auto& [key, entry] : entries) {
      if (known.contains(key)) continue;
      if (const auto path = path_of(entry.path); !path.empty()) place_at(root, path, read_one(key));
    }
    return root;
  }

  fs::path folder;
  Entries entries;
  Value structure;
  std::map<std::string, std::size_t> places;

 private:
  // Entries that share a location would use more memory than the files have.
  void check_lengths() const {
    std::map<std::string, std::uint64_t> used;
    const auto use = [&](const Place& place) {
      auto& bytes = used[place.file];
      if (__builtin_add_overflow(bytes, place.length, &bytes)) bytes = UINT64_MAX;
    };
    for (const auto& [key, entry] : entries) {
      if (!entry.is_tensor) use(entry.place);
      for (const auto& piece : entry.pieces) use(piece.place);
    }
    for (const auto& [file, bytes] : used) {
      std::error_code code;
      const auto there = fs::file_size(folder / file, code);
      if (code) serialize::fail_to_read((folder / file).string(), code.value());
      if (bytes > there) {
        throw_error<CheckpointError>(ErrorDetails{.file = folder / file},
                                     "{}: the metadata refers to {} bytes of this file, but it has {}",
                                     (folder / file).string(), bytes, there);
      }
    }
  }

  static Metadata read_named(const fs::path& folder) {
    const auto file = folder / kMetadataName;
    std::error_code code;
    if (fs::status(file, code).type() == fs::file_type::not_found && fs::is_directory(folder, code))
      refuse_unfinished(folder);
    return with_source(file.string(), [&] { return read_metadata(file); });
  }
};

Reader::Reader(const fs::path& folder) : contents_(std::make_unique<const Contents>(folder)) {}
Reader::Reader(Reader&&) noexcept = default;
Reader& Reader::operator=(Reader&&) noexcept = default;
Reader::~Reader() = default;

std::vector<std::string> Reader::keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, entry] : contents_->entries) keys.push_back(key);
  return keys;
}

bool Reader::is_tensor(const std::string& key) const { return contents_->find(key).is_tensor; }
std::vector<std::int64_t> Reader::shape(const std::string& key) const {
  return contents_->find_tensor(key).sizes;
}
at::ScalarType Reader::dtype(const std::string& key) const { return contents_->find_tensor(key).dtype; }

Value Reader::read(const std::string& key) const {
  const auto& entry = contents_->find(key);
  if (!entry.is_tensor) return read_place(contents_->folder, entry.place);
  return read_part(key, Sizes(entry.sizes.size(), 0), entry.sizes);
}

at::Tensor Reader::read_part(const std::string& key, const Sizes& offsets, const Sizes& sizes) const {
  const auto& entry = contents_->find_tensor(key);
  const bool fits = offsets.size() == entry.sizes.size() && sizes.size() == entry.sizes.size() &&
                    std::ranges::all_of(std::views::iota(std::size_t{0}, sizes.size()), [&](std::size_t i) {
                      return offsets[i] >= 0 && sizes[i] >= 0 && offsets[i] <= entry.sizes[i] &&
                             sizes[i] <= entry.sizes[i] - offsets[i];
                    });
  if (!fits) throw_error<ArgumentError>("'{}' has no part of this shape at these offsets", key);
  const auto is_wanted = [&](const Piece& piece) { return piece.offsets == offsets && piece.sizes == sizes; };
  if (const auto whole = std::ranges::find_if(entry.pieces, is_wanted); whole != entry.pieces.end())
    return read_piece(contents_->folder, key, entry, *whole).contiguous();
  auto part = make_empty(contents_->folder, sizes, entry.dtype);
  for (const auto& piece : entry.pieces) {
    if (!overlap(offsets, sizes, piece)) continue;
    copy_overlap(part, offsets, read_piece(contents_->folder, key, entry, piece), piece.offsets);
  }
  return part;
}

Dict Reader::read_all(at::Device map_location) const {
  const auto read_one = [&](const std::string& key) {
    const auto& entry = contents_->find(key);
    if (entry.is_tensor && map_location.is_meta()) {
      return Value(
          make_empty(contents_->folder, entry.sizes, at::TensorOptions(entry.dtype).device(at::kMeta)));
    }
    auto value = read(key);
    if (auto* tensor = value.get_if<at::Tensor>()) *tensor = tensor->to(map_location);
    return value;
  };
  const auto* structure = contents_->structure.is<Dict>() ? &contents_->structure : nullptr;
  auto root = contents_->nested(structure, read_one, [](const Tuple& path) { return path.items; });
  return std::move(root.as_dict());
}

void Reader::verify(std::size_t share, std::size_t shares) const {
  const lockstep::LoadOptions options{.map_location = at::kMeta, .mmap = false, .verify = true};
  std::size_t number = 0;
  const auto is_mine = [&] { return number++ % shares == share; };
  for (const auto& [key, entry] : contents_->entries) {
    if (!entry.is_tensor && is_mine()) read_place(contents_->folder, entry.place, options);
    for (const auto& piece : entry.pieces) {
      if (is_mine()) read_piece(contents_->folder, key, entry, piece, options);
    }
  }
}

Dict load(const fs::path& folder) {
  const ErrorFile about(folder);
  const PhaseScope phase(Phase::checkpoint);
  Dict contents;
  read_again_if_replaced(folder, [&] { contents = Reader(folder).read_all(); });
  return contents;
}

void Reader::check_fits(const std::string& key, const Value& value) const {
  if (is_empty_dict(value)) return;
  if (!contents_->places.contains(key))
    throw_error<CheckpointError>("{}: there is no entry '{}'", contents_->folder.string(), key);
  if (!distributed_checkpoint::is_tensor(value)) return;
  const auto* sharded = value.get_if<ShardedTensor>();
  const Sizes wanted = sharded != nullptr ? sharded->size : value.as_tensor().sizes().vec();
  if (shape(key) == wanted) return;
  throw_error<CheckpointError>("{}: '{}' is of shape [{}], but here of [{}]", contents_->folder.string(), key,
                               fmt::join(shape(key), ", "), fmt::join(wanted, ", "));
}

void Reader::read_into(const std::string& key, Value& value) const {
  const at::NoGradGuard no_grad;
  if (const auto* sharded = value.get_if<ShardedTensor>()) {
    for (const auto& shard : sharded->local_shards) {
      shard.tensor.copy_(read_part(key, shard.shard_offsets, shard.tensor.sizes().vec()));
    }
  } else if (distributed_checkpoint::is_tensor(value)) {
    value.as_tensor().copy_(read(key).as_tensor());
  } else if (is_empty_dict(value) && !contents_->places.contains(key)) {
    value = contents_->nested(
        find_structure(contents_->structure, key), [&](const std::string& name) { return read(name); },
        [&](const Tuple& path) { return path_below(key, path); });
  } else {
    value = read(key);
  }
}

void check_only_tensors(const Dict& contents, std::source_location where) {
  const comm::CallSite site(where, "checkpoint");
  for (const auto& leaf : flatten(contents)) {
    if (is_tensor(*leaf.value)) continue;
    throw_error<ArgumentError>(
        "distributed_checkpoint::load: '{}' is not a tensor but {}, which a dict written in the call loses; keep the "
        "dict in a variable: Dict state{{...}}; load(state, folder)",
        name_of(leaf.path), is_empty_dict(*leaf.value) ? "an empty dict" : leaf.value->type_name());
  }
}

void load(Dict& contents, const fs::path& folder, const LoadOptions& options, std::source_location where) {
  const comm::CallSite site(where, "checkpoint");
  const ErrorFile about(folder);
  const PhaseScope phase(Phase::checkpoint);
  checkpointing::check_folder(folder, options.checkpoint_id, "distributed_checkpoint::load");
  const auto group = checkpointing::group_of(options, "distributed_checkpoint::load");
  std::optional<Reader> reader;
  checkpointing::on_every(group, [&] {
    reader.emplace(folder);
    for_each_leaf(contents, [&](const std::string& name, Value& value) { reader->check_fits(name, value); });
  });
  checkpointing::on_every(group, [&] {
    for_each_leaf(contents, [&](const std::string& name, Value& value) { reader->read_into(name, value); });
  });
}

LocalShape compute_local_shape_and_global_offset(const std::vector<std::int64_t>& global_shape,
                                                 const std::vector<std::int64_t>& mesh_shape,
                                                 const std::vector<std::int64_t>& my_coordinate,
                                                 const std::vector<std::optional<std::int64_t>>& placements) {
  check_mesh(global_shape.size(), mesh_shape, my_coordinate, placements);
  LocalShape local{.local_shape = global_shape,
                   .global_offset = std::vector<std::int64_t>(global_shape.size(), 0)};
  for (std::size_t i = 0; i < mesh_shape.size(); ++i) {
    if (!placements[i]) continue;
    const auto d = static_cast<std::size_t>(*placements[i]);
    auto& size = local.local_shape[d];
    auto& offset = local.global_offset[d];
    const auto chunk = (size + mesh_shape[i] - 1) / mesh_shape[i];
    const auto start = std::min(size, chunk * my_coordinate[i]);
    size = std::min(size - start, chunk);
    // PyTorch has an empty part at the end.
    offset = size == 0 ? global_shape[d] : offset + start;
  }
  return local;
}

}  // namespace lockstep::distributed_checkpoint
