// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/distributed_table.h"

#include <algorithm>
#include <charconv>
#include <span>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/atomic_file.h>
#include <lockstep/base/error.h>
#include <lockstep/serialize/torch_file.h>

#include "checkpoint/tiling.h"
#include "serialize/allowed_names.h"
#include "serialize/byte_source.h"
#include "serialize/checksum.h"
#include "serialize/dtypes.h"
#include "serialize/pickle_writer.h"
#include "serialize/unpickler.h"
#include "serialize/write_file.h"

namespace lockstep::distributed_checkpoint {
namespace {

using pickle::Opcode;

constexpr const char* kModule = "torch.distributed.checkpoint.metadata";
constexpr const char* kFileModule = "torch.distributed.checkpoint.filesystem";

[[noreturn]] void fail(const std::string& what) {
  throw CheckpointError(fmt::format("the table of the distributed checkpoint is damaged: {}", what));
}

// A record is ("module name", ((field, value), ...)): see Unpickler.
bool is_record(const Value& value, std::string_view name) {
  const auto* record = value.get_if<Tuple>();
  return record != nullptr && record->items.size() == 2 && record->items[0].is<std::string>() &&
         record->items[0].as_string().ends_with(fmt::format(" {}", name));
}

const Value* find_field(const Value& record, std::string_view name) {
  const auto* fields = record.as_items()[1].get_if<Tuple>();
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
  fail(fmt::format("{} has no {}", repr(record, 60), name));
}

Sizes sizes_of(const Value& value) {
  const auto* size = value.get_if<Size>();
  if (size == nullptr) fail(fmt::format("{} is no torch.Size", repr(value, 60)));
  if (std::ranges::any_of(size->sizes, [](auto each) { return each < 0; })) fail("a size is below 0");
  return size->sizes;
}

std::uint64_t count_of(const Value& value) {
  if (value.as_int() < 0) fail("a place in a file is below 0");
  return static_cast<std::uint64_t>(value.as_int());
}

Place place_of(const Value& info) {
  if (!is_record(info, "_StorageInfo")) fail("an entry has no place");
  if (const auto* transforms = find_field(info, "transform_descriptors");
      transforms != nullptr && !transforms->is<None>() && !transforms->as_items().empty()) {
    throw CheckpointError(
        "the distributed checkpoint is compressed or encrypted; save it without transforms");
  }
  Place place{.file = field(info, "relative_path").as_string(),
              .offset = count_of(field(info, "offset")),
              .length = count_of(field(info, "length"))};
  const std::filesystem::path path(place.file);
  if (path.is_absolute() || std::ranges::find(path, "..") != path.end()) {
    fail(fmt::format("'{}' leads out of the folder", place.file));
  }
  return place;
}

std::uint64_t bytes_of(at::ScalarType dtype, const Sizes& sizes) {
  std::int64_t bytes = 0;
  const auto size = static_cast<std::int64_t>(c10::elementSize(dtype));
  if (__builtin_mul_overflow(element_count(sizes), size, &bytes)) {
    fail(fmt::format("a tensor of the sizes [{}] is too large", fmt::join(sizes, ", ")));
  }
  return static_cast<std::uint64_t>(bytes);
}

Entry tensor_entry(const Value& metadata) {
  Entry entry{.is_tensor = true};
  const auto& properties = field(metadata, "properties");
  const auto& state = properties.as_items()[1].as_items();
  const auto* dtype = state.empty() ? nullptr : state[0].get_if<at::ScalarType>();
  if (!is_record(properties, "TensorProperties") || dtype == nullptr) fail("a tensor has no dtype");
  if (state.size() > 1 && state[1].is<at::Layout>() && *state[1].get_if<at::Layout>() != at::kStrided) {
    throw CheckpointError("the distributed checkpoint has a sparse tensor, which is not supported");
  }
  entry.dtype = *dtype;
  entry.sizes = sizes_of(field(metadata, "size"));
  for (const auto& chunk : field(metadata, "chunks").as_items()) {
    Piece piece{.offsets = sizes_of(field(chunk, "offsets")), .sizes = sizes_of(field(chunk, "sizes"))};
    if (piece.offsets.size() != entry.sizes.size() || piece.sizes.size() != entry.sizes.size()) {
      fail("a piece has another number of dimensions than its tensor");
    }
    for (std::size_t i = 0; i < entry.sizes.size(); ++i) {
      if (piece.offsets[i] > entry.sizes[i] || piece.sizes[i] > entry.sizes[i] - piece.offsets[i]) {
        fail("a piece reaches beyond its tensor");
      }
    }
    entry.pieces.push_back(std::move(piece));
  }
  bytes_of(entry.dtype, entry.sizes);
  if (!is_tiling(entry.sizes, entry.pieces)) fail(tiling_problem(entry.sizes, entry.pieces));
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
      fail("a piece is larger than its place in a file");
  }
}

// An attribute of the Metadata, which Python keeps and does not look at.
constexpr const char* kHasTrailer = "lockstep_trailer";
constexpr std::string_view kTrailer = "\n# lockstep ";

// At the very end: how long the structure before it is, and the checksum of all that comes before.
std::string trailer_of(std::string_view front, std::size_t structure) {
  return fmt::format("{}{:016x} {:08x}\n", kTrailer, structure,
                     serialize::crc32_of(std::as_bytes(std::span(front))));
}

struct TableParts {
  std::string_view pickle;
  std::string_view structure;
};

// Tables that Python wrote are pickles and nothing else; what is behind one is no part of it.
TableParts parts_of(std::string_view text) {
  const auto length = trailer_of("", 0).size();
  const auto front = text.substr(0, text.size() - std::min(text.size(), length));
  const auto trailer = text.substr(front.size());
  if (trailer.size() < length || !trailer.starts_with(kTrailer)) return {.pickle = text, .structure = {}};
  std::size_t structure = 0;
  const auto* digits = trailer.data() + kTrailer.size();
  std::from_chars(digits, digits + 16, structure, 16);
  if (trailer != trailer_of(front, structure) || structure > front.size())
    fail("its checksum is another one");
  return {.pickle = front.substr(0, front.size() - structure),
          .structure = front.substr(front.size() - structure)};
}

// The paths of all entries as one tree.
class Paths {
 public:
  // Time and memory are proportional to the paths; what place_at() makes of them then is, too.
  void add(const std::string& name, const Tuple& path) {
    constexpr std::size_t deepest = 1200;
    if (path.items.empty()) fail(fmt::format("'{}' has an empty path", name));
    if (path.items.size() > deepest) fail(fmt::format("'{}' is nested more than {} deep", name, deepest));
    std::size_t node = 0;
    for (const auto& step : path.items)
      node = step.is<std::string>() ? key(node, step.as_string()) : index(node, step.as_int());
  }
  void check() const {
    for (const auto& node : nodes_) {
      if (node.indices.empty()) continue;
      const auto first = node.indices.begin()->first;
      const auto last = node.indices.rbegin()->first;
      if (first != 0 || !std::cmp_equal(last, node.indices.size() - 1)) {
        fail(fmt::format("a list of {} items has the indices {} to {}", node.indices.size(), first, last));
      }
    }
  }

 private:
  struct Node {
    std::map<std::string, std::size_t> keys{};
    std::map<std::int64_t, std::size_t> indices{};
  };
  std::size_t key(std::size_t node, const std::string& name) {
    return below(nodes_[node].keys.try_emplace(name, nodes_.size()).first->second);
  }
  std::size_t index(std::size_t node, std::int64_t number) {
    return below(nodes_[node].indices.try_emplace(number, nodes_.size()).first->second);
  }
  std::size_t below(std::size_t node) {
    if (node == nodes_.size()) nodes_.emplace_back();
    return node;
  }
  std::vector<Node> nodes_ = std::vector<Node>(1);
};

}  // namespace

Table read_table(const std::filesystem::path& file) {
  const auto source = serialize::open_file(file, false);
  return parse_table(source->read_text(0, source->size()));
}

Table parse_table(std::string_view text) {
  serialize::NoStorages none;
  const auto parts = parts_of(text);
  const auto pickle = pickle::read_pickle(parts.pickle, serialize::names_in_distributed_checkpoints());
  if (pickle.size != parts.pickle.size()) fail("it goes on behind its end");
  const auto metadata = serialize::unpickle(pickle, none);
  if (!is_record(metadata, "Metadata")) fail("it is no Metadata");
  if (find_field(metadata, kHasTrailer) != nullptr && parts.structure.empty()) fail("it is cut short");
  Entries entries;
  std::map<std::string, std::size_t> places;
  for (const auto& [key, value] : field(metadata, "state_dict_metadata").as_dict()) {
    const auto& name = key.as_string();
    Entry entry;
    if (is_record(value, "TensorStorageMetadata")) {
      entry = tensor_entry(value);
    } else if (!is_record(value, "BytesStorageMetadata")) {
      fail(fmt::format("'{}' is neither a tensor nor an object", name));
    }
    places.emplace(name, entries.size());
    entries.emplace_back(name, std::move(entry));
  }
  for (const auto& [index, info] : field(metadata, "storage_data").as_dict()) {
    const auto found = places.find(field(index, "fqn").as_string());
    if (found != places.end()) put_place(entries[found->second].second, index, info);
  }
  const auto* paths = find_field(metadata, "planner_data");
  Paths known;
  for (auto& [name, entry] : entries) {
    const auto missing = [](const Place& place) { return place.file.empty(); };
    if (entry.is_tensor ? std::ranges::any_of(entry.pieces, missing, &Piece::place) : missing(entry.place)) {
      fail(fmt::format("'{}' has no place in a file", name));
    }
    const auto* path = paths != nullptr && paths->is<Dict>() ? paths->as_dict().find(name) : nullptr;
    entry.path = path != nullptr && path->is<Tuple>() ? *path->get_if<Tuple>() : Tuple{name};
    known.add(name, entry.path);
  }
  known.check();
  return {.entries = std::move(entries),
          .structure = parts.structure.empty() ? Value() : load_bytes(parts.structure, {}, "the structure")};
}

namespace {

// Python makes the object without calling anything, and then sets its attributes.
class TableWriter {
 public:
  std::string write(const Entries& entries);

 private:
  template <typename Fields>
  void record(const char* module, const char* name, Fields fields) {
    writer_.global(module, name);
    writer_.op(Opcode::empty_tuple);
    writer_.op(Opcode::new_object);
    writer_.op(Opcode::empty_dict);
    writer_.op(Opcode::mark);
    fields();
    writer_.op(Opcode::set_items);
    writer_.op(Opcode::build);
  }
  void integers(const Sizes& sizes) {
    writer_.op(Opcode::mark);
    for (const auto size : sizes) writer_.integer(size);
    writer_.op(Opcode::tuple);
  }
  void size(const Sizes& sizes) {
    writer_.global("torch", "Size");
    writer_.op(Opcode::mark);
    integers(sizes);
    writer_.op(Opcode::tuple);
    writer_.op(Opcode::reduce);
  }
  void properties(at::ScalarType dtype);
  void metadata_of(const Entry& entry);
  void index(const std::string& name, const Piece* piece, std::size_t number);
  void info(const Place& place);
  void path(const Tuple& path);

  pickle::Writer writer_;
};

void TableWriter::properties(at::ScalarType dtype) {
  writer_.global(kModule, "TensorProperties");
  writer_.op(Opcode::empty_tuple);
  writer_.op(Opcode::new_object);
  writer_.op(Opcode::mark);
  writer_.global("torch", serialize::find_dtype(dtype)->name);
  writer_.global("torch.serialization", "_get_layout");
  writer_.op(Opcode::mark);
  writer_.text("torch.strided");
  writer_.op(Opcode::tuple);
  writer_.op(Opcode::reduce);
  writer_.boolean(false);
  writer_.global(kModule, "_MEM_FORMAT_ENCODING");
  writer_.op(Opcode::mark);
  writer_.integer(0);
  writer_.op(Opcode::tuple);
  writer_.op(Opcode::reduce);
  writer_.boolean(false);
  writer_.op(Opcode::tuple);
  writer_.op(Opcode::build);
}

void TableWriter::metadata_of(const Entry& entry) {
  if (!entry.is_tensor) {
    writer_.global(kModule, "BytesStorageMetadata");
    writer_.op(Opcode::empty_tuple);
    writer_.op(Opcode::new_object);
    return;
  }
  record(kModule, "TensorStorageMetadata", [&] {
    writer_.text("properties");
    properties(entry.dtype);
    writer_.text("size");
    size(entry.sizes);
    writer_.text("chunks");
    writer_.op(Opcode::empty_list);
    for (const auto& piece : entry.pieces) {
      record(kModule, "ChunkStorageMetadata", [&] {
        writer_.text("offsets");
        size(piece.offsets);
        writer_.text("sizes");
        size(piece.sizes);
      });
      writer_.op(Opcode::append);
    }
  });
}

void TableWriter::index(const std::string& name, const Piece* piece, std::size_t number) {
  record(kModule, "MetadataIndex", [&] {
    writer_.text("fqn");
    writer_.text(name);
    writer_.text("offset");
    piece != nullptr ? size(piece->offsets) : writer_.none();
    writer_.text("index");
    piece != nullptr ? writer_.integer(static_cast<std::int64_t>(number)) : writer_.none();
  });
}

void TableWriter::info(const Place& place) {
  record(kFileModule, "_StorageInfo", [&] {
    writer_.text("relative_path");
    writer_.text(place.file);
    writer_.text("offset");
    writer_.integer(static_cast<std::int64_t>(place.offset));
    writer_.text("length");
    writer_.integer(static_cast<std::int64_t>(place.length));
  });
}

void TableWriter::path(const Tuple& path) {
  writer_.op(Opcode::mark);
  for (const auto& step : path.items) {
    step.is<std::string>() ? writer_.text(step.as_string()) : writer_.integer(step.as_int());
  }
  writer_.op(Opcode::tuple);
}

std::string TableWriter::write(const Entries& entries) {
  const auto dict = [&](const char* name, auto items) {
    writer_.text(name);
    writer_.op(Opcode::empty_dict);
    for (const auto& [key, entry] : entries) items(key, entry);
  };
  record(kModule, "Metadata", [&] {
    dict("state_dict_metadata", [&](const std::string& key, const Entry& entry) {
      writer_.text(key);
      metadata_of(entry);
      writer_.op(Opcode::set_item);
    });
    dict("planner_data", [&](const std::string& key, const Entry& entry) {
      writer_.text(key);
      path(entry.path);
      writer_.op(Opcode::set_item);
    });
    dict("storage_data", [&](const std::string& key, const Entry& entry) {
      if (!entry.is_tensor) {
        index(key, nullptr, 0);
        info(entry.place);
        writer_.op(Opcode::set_item);
      }
      for (std::size_t i = 0; i < entry.pieces.size(); ++i) {
        index(key, &entry.pieces[i], i);
        info(entry.pieces[i].place);
        writer_.op(Opcode::set_item);
      }
    });
    writer_.text("storage_meta");
    writer_.none();
    writer_.text("version");
    writer_.text("1.0.0");
    writer_.text(kHasTrailer);
    writer_.boolean(true);
  });
  return writer_.finish();
}

}  // namespace

std::string write_table(const Table& table) {
  const auto structure = save_bytes(table.structure);
  const auto front = TableWriter().write(table.entries) + structure;
  return front + trailer_of(front, structure.size());
}

void write_table_file(const Table& table, const std::filesystem::path& folder, bool sync) {
  const auto text = write_table(table);
  const auto file = folder / kTableName;
  try {
    AtomicFile target(file, {.sync = sync});
    target.write(std::as_bytes(std::span(text)));
    target.commit();
  } catch (const NotOnDisk& error) {
    serialize::fail_to_sync(file, error);
  } catch (const std::system_error& error) {
    throw CheckpointError(fmt::format("{}: cannot be written: {}", file.string(), error.code().message()));
  }
}

}  // namespace lockstep::distributed_checkpoint
