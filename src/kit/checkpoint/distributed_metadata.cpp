// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/distributed_metadata.h"

#include <algorithm>
#include <sys/stat.h>
#include <tuple>

#include <fmt/ranges.h>

#include <lockstep/serialize/torch_file.h>

#include "base/throw_error.h"
#include "base/version.h"
#include "checkpoint/shard_coverage.h"
#include "checkpoint/write_metadata.h"
#include "serialize/byte_source.h"
#include "serialize/unpickler.h"

namespace lockstep::distributed_checkpoint {
namespace {

namespace fs = std::filesystem;

template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw_error<CheckpointError>("the metadata of the distributed checkpoint is damaged: {}",
                               fmt::format(format, std::forward<Args>(args)...));
}

// A record is ("module name", ((field, value), ...)): see Unpickler.
bool is_record(const Value& value, std::string_view name) {
  const auto* record = value.get_if<Tuple>();
  return record != nullptr && record->items.size() == 2 && record->items[0].is<std::string>() &&
         record->items[0].as_string().ends_with(fmt::format(" {}", name));
}

const Value* find_field(const Value& record, std::string_view name) {
  const auto* parts = record.get_if<Tuple>();
  if (parts == nullptr || parts->items.size() != 2) fail("{} is not a record", repr(record, 60));
  const auto* fields = parts->items[1].get_if<Tuple>();
  if (fields == nullptr) return nullptr;
  for (const auto& field : fields->items) {
    const auto* pair = field.get_if<Tuple>();
    if (pair == nullptr || pair->items.size() != 2 || !pair->items[0].is<std::string>()) continue;
    if (pair->items[0].as_string() == name) return &pair->items[1];
  }
  return nullptr;
}

const Value& field(const Value& record, std::string_view name) {
  if (const auto* value = find_field(record, name)) return *value;
  fail("{} has no {}", repr(record, 60), name);
}

Sizes sizes_of(const Value& value) {
  const auto* size = value.get_if<Size>();
  if (size == nullptr) fail("{} is not a torch.Size", repr(value, 60));
  if (std::ranges::any_of(size->sizes, [](auto each) { return each < 0; })) fail("a size is below 0");
  return size->sizes;
}

std::uint64_t count_of(const Value& value) {
  if (value.as_int() < 0) fail("a position in a file is below 0");
  return static_cast<std::uint64_t>(value.as_int());
}

Place place_of(const Value& info) {
  if (!is_record(info, "_StorageInfo")) fail("an entry has no position");
  if (const auto* transforms = find_field(info, "transform_descriptors");
      transforms != nullptr && !transforms->is<None>() && !transforms->as_items().empty()) {
    throw CheckpointError(
        "the distributed checkpoint is compressed or encrypted; save it without transforms");
  }
  Place place{.file = field(info, "relative_path").as_string(),
              .offset = count_of(field(info, "offset")),
              .length = count_of(field(info, "length"))};
  const std::filesystem::path path(place.file);
  if (path.is_absolute() || std::ranges::find(path, "..") != path.end())
    fail("'{}' leads out of the folder", place.file);
  return place;
}

std::uint64_t bytes_of(at::ScalarType dtype, const Sizes& sizes) {
  std::int64_t bytes = 0;
  const auto size = static_cast<std::int64_t>(c10::elementSize(dtype));
  if (__builtin_mul_overflow(element_count(sizes), size, &bytes))
    fail("a tensor of shape [{}] is too large", fmt::join(sizes, ", "));
  return static_cast<std::uint64_t>(bytes);
}

Entry tensor_entry(const Value& metadata) {
  Entry entry{.is_tensor = true};
  const auto& properties = field(metadata, "properties");
  if (!is_record(properties, "TensorProperties")) fail("a tensor has no properties");
  const auto& state = properties.as_items()[1].as_items();
  const auto* dtype = state.empty() ? nullptr : state[0].get_if<at::ScalarType>();
  if (dtype == nullptr) fail("a tensor has no dtype");
  if (state.size() > 1 && state[1].is<at::Layout>() && *state[1].get_if<at::Layout>() != at::kStrided)
    throw CheckpointError("the distributed checkpoint has a sparse tensor, which is not supported");
  entry.dtype = *dtype;
  entry.sizes = sizes_of(field(metadata, "size"));
  for (const auto& chunk : field(metadata, "chunks").as_items()) {
    Piece piece{.offsets = sizes_of(field(chunk, "offsets")), .sizes = sizes_of(field(chunk, "sizes"))};
    if (piece.offsets.size() != entry.sizes.size() || piece.sizes.size() != entry.sizes.size())
      fail("a piece has another number of dimensions than its tensor");
    for (std::size_t i = 0; i < entry.sizes.size(); ++i) {
      if (piece.offsets[i] > entry.sizes[i] || piece.sizes[i] > entry.sizes[i] - piece.offsets[i])
        fail("a piece reaches beyond its tensor");
    }
    entry.pieces.push_back(std::move(piece));
  }
  bytes_of(entry.dtype, entry.sizes);
  if (!covers(entry.sizes, entry.pieces)) fail("{}", coverage_problem(entry.sizes, entry.pieces));
  return entry;
}

void put_place(Entry& entry, const Value& index, const Value& info) {
  if (!entry.is_tensor) {
    entry.place = place_of(info);
    return;
  }
  const auto* offset = find_field(index, "offset");
  const auto offsets =
      offset == nullptr || offset->is<None>() ? Sizes(entry.sizes.size(), 0) : sizes_of(*offset);
  for (auto& piece : entry.pieces) {
    if (piece.offsets != offsets) continue;
    piece.place = place_of(info);
    if (bytes_of(entry.dtype, piece.sizes) > piece.place.length)
      fail("a piece is larger than its space in the file");
  }
}

// The paths of all entries as one tree.
class Paths {
 public:
  // Time and memory are proportional to the paths; what place_at() makes of them then is, too.
  void add(const std::string& name, const Tuple& path) {
    constexpr std::size_t deepest = 1200;
    if (path.items.empty()) fail("'{}' has an empty path", name);
    if (path.items.size() > deepest) fail("'{}' is nested more than {} deep", name, deepest);
    std::size_t node = 0;
    for (const auto& step : path.items)
      node = step.is<std::string>() ? below(&Node::keys, node, step.as_string())
                                    : below(&Node::indices, node, step.as_int());
  }
  void check() const {
    for (const auto& node : nodes_) {
      if (node.indices.empty()) continue;
      const auto first = node.indices.begin()->first;
      const auto last = node.indices.rbegin()->first;
      if (first != 0 || !std::cmp_equal(last, node.indices.size() - 1))
        fail("a list of {} items has the indices {} to {}", node.indices.size(), first, last);
    }
  }

 private:
  struct Node {
    std::map<std::string, std::size_t> keys{};
    std::map<std::int64_t, std::size_t> indices{};
  };
  // The node below a key or an index.
  template <typename Steps>
  std::size_t below(Steps Node::*steps, std::size_t node, const typename Steps::key_type& step) {
    const auto [found, is_new] = (nodes_[node].*steps).try_emplace(step, nodes_.size());
    const auto place = found->second;
    if (is_new) nodes_.emplace_back();
    return place;
  }
  std::vector<Node> nodes_ = std::vector<Node>(1);
};

// Without their places.
Entries entries_of(const Value& metadata) {
  Entries entries;
  for (const auto& [key, value] : field(metadata, "state_dict_metadata").as_dict()) {
    const auto& name = key.as_string();
    Entry entry;
    if (is_record(value, "TensorStorageMetadata")) {
      entry = tensor_entry(value);
    } else if (!is_record(value, "BytesStorageMetadata")) {
      fail("'{}' is neither a tensor nor an object", name);
    }
    entries.emplace_back(name, std::move(entry));
  }
  return entries;
}

void put_places(Entries& entries, const Value& metadata) {
  std::map<std::string, Entry*> by_name;
  for (auto& [name, entry] : entries) by_name.emplace(name, &entry);
  for (const auto& [index, info] : field(metadata, "storage_data").as_dict()) {
    const auto found = by_name.find(field(index, "fqn").as_string());
    if (found != by_name.end()) put_place(*found->second, index, info);
  }
  const auto missing = [](const Place& place) { return place.file.empty(); };
  for (const auto& [name, entry] : entries) {
    if (entry.is_tensor ? std::ranges::any_of(entry.pieces, missing, &Piece::place) : missing(entry.place))
      fail("'{}' has no position in a file", name);
  }
}

void put_paths(Entries& entries, const Value& metadata) {
  const auto* paths = find_field(metadata, "planner_data");
  Paths known;
  for (auto& [name, entry] : entries) {
    const auto* path = paths != nullptr && paths->is<Dict>() ? paths->as_dict().find(name) : nullptr;
    entry.path = path != nullptr && path->is<Tuple>() ? *path->get_if<Tuple>() : Tuple{name};
    known.add(name, entry.path);
  }
  known.check();
}

// Python's metadata has no number, and that of Lockstep before it had one has none either.
void check_format(const Value& metadata, const std::string& name) {
  const auto* number = find_field(metadata, kFormatField);
  if (number == nullptr) return;
  const auto reason = reason_not_to_read(formats::kCheckpoints, count_of(*number));
  if (!reason.empty()) throw_error<CheckpointReadError>("{}: {}", name, reason);
}

constexpr std::string_view kDataSuffix = ".distcp";

// Python's "__1_0.distcp", and what a killed writer left, "__1_0.distcp.part", too.
bool is_data_file(const std::string& name) {
  const auto dot = name.find(kDataSuffix);
  return name.starts_with("__") && dot != std::string::npos && name.find('_', 2) < dot;
}

}  // namespace

std::string data_file(std::size_t rank, const std::string& token) {
  return fmt::format("__{}_{}{}", rank, token, kDataSuffix);
}

std::vector<std::string> data_files(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code code;
  for (auto entry = fs::directory_iterator(folder, code); !code && entry != fs::directory_iterator();
       entry.increment(code)) {
    auto name = entry->path().filename().string();
    if (is_data_file(name)) names.push_back(std::move(name));
  }
  return names;
}

Metadata read_metadata(const std::filesystem::path& file) {
  const ErrorFile about(file);
  const auto source = serialize::open_file(file, false);
  return parse_metadata(source->read_text(0, source->size()), file.string());
}

Metadata parse_metadata(std::string_view text, const std::string& name) {
  const auto parts = without_trailer(text);
  const auto pickle = pickle::read_pickle(parts.pickle, serialize::is_in_distributed_checkpoints);
  if (pickle.size != parts.pickle.size()) fail("there is data after its end");
  const auto metadata = serialize::unpickle(pickle, serialize::no_storages);
  if (!is_record(metadata, "Metadata")) fail("it is not a Metadata object");
  check_format(metadata, name);
  if (find_field(metadata, kHasTrailer) != nullptr && parts.structure.empty()) fail("it is cut short");
  auto entries = entries_of(metadata);
  put_places(entries, metadata);
  put_paths(entries, metadata);
  return {.entries = std::move(entries),
          .structure = parts.structure.empty() ? Value() : load_bytes(parts.structure, {}, "the structure")};
}

void read_again_if_replaced(const std::filesystem::path& folder, const std::function<void()>& read) {
  const auto metadata = [&] {
    struct stat status {};
    ::stat((folder / kMetadataName).c_str(), &status);
    return std::tuple(status.st_ino, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  };
  constexpr int most_attempts = 20;  // several ranks may save all the time
  for (int attempt = 1;; ++attempt) {
    const auto before = metadata();
    try {
      return read();
    } catch (const CheckpointError&) {
      if (attempt == most_attempts || metadata() == before) throw;
    }
  }
}

}  // namespace lockstep::distributed_checkpoint
