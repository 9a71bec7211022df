// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <map>
#include <ranges>
#include <span>
#include <system_error>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <lockstep/base/atomic_file.h>
#include <lockstep/base/error.h>
#include <lockstep/checkpoint/distributed_checkpoint.h>
#include <lockstep/serialize/torch_file.h>

#include "checkpoint/distributed_table.h"
#include "checkpoint/share.h"
#include "serialize/byte_source.h"

namespace lockstep::distributed_checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr const char* kTable = ".metadata";

Value read_place(const fs::path& folder, const Place& place) {
  const auto file = folder / place.file;
  const auto source = serialize::open_file(file, false);
  return load_bytes(source->read_text(place.offset, place.length), {}, file.string());
}

// Copies what a piece and a wanted part have in common.
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

bool overlap(const Sizes& offsets, const Sizes& sizes, const Piece& piece) {
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (std::max(offsets[i], piece.offsets[i]) >=
        std::min(offsets[i] + sizes[i], piece.offsets[i] + piece.sizes[i])) {
      return false;
    }
  }
  return true;
}

// Sets a value under keys and indices, making the dicts and lists on the way.
void place_at(Value& root, const std::vector<Value>& path, std::size_t depth, Value value) {
  if (depth == path.size()) {
    root = std::move(value);
    return;
  }
  const auto& step = path[depth];
  if (step.is<std::string>()) {
    if (!root.is<Dict>()) root = Dict();
    place_at(root.as_dict()[step], path, depth + 1, std::move(value));
    return;
  }
  constexpr std::int64_t most = 1 << 20;
  const auto index = step.as_int();
  if (index < 0 || index >= most)
    throw CheckpointError(fmt::format("a path of the table has the index {}", index));
  if (!root.is<List>()) root = List();
  auto& items = root.get_if<List>()->items;
  if (items.size() <= static_cast<std::size_t>(index)) items.resize(static_cast<std::size_t>(index) + 1);
  place_at(items[static_cast<std::size_t>(index)], path, depth + 1, std::move(value));
}

bool is_leaf(const Value& value) {
  if (value.is<Dict>()) return value.as_dict().empty();
  const auto* list = value.get_if<List>();
  // As Python has it: lists are taken apart for the tensors and dicts in them only.
  return list == nullptr || std::ranges::all_of(list->items, [](const Value& item) {
           return !item.is<Dict>() && !item.is<at::Tensor>() && !item.is<Parameter>() && is_leaf(item);
         });
}

struct Leaf {
  Tuple path;
  const Value* value;
};

void flatten(const Value& value, const Tuple& path, std::vector<Leaf>& leaves) {
  const auto below = [&](Value step, const Value& item) {
    auto longer = path;
    longer.items.push_back(std::move(step));
    flatten(item, longer, leaves);
  };
  if (is_leaf(value)) {
    leaves.push_back({path, &value});
  } else if (const auto* dict = value.get_if<Dict>()) {
    for (const auto& [key, item] : *dict) below(key.is<std::string>() ? key : Value(repr(key)), item);
  } else {
    const auto& items = value.as_items();
    for (std::size_t i = 0; i < items.size(); ++i) below(i, items[i]);
  }
}

std::string name_of(const Tuple& path) {
  std::string name;
  for (const auto& step : path.items) {
    if (!name.empty()) name += '.';
    name += step.is<std::string>() ? step.as_string() : fmt::format("{}", step.as_int());
  }
  return name;
}

Entry entry_of(const Leaf& leaf) {
  Entry entry{.path = leaf.path};
  if (!leaf.value->is<at::Tensor>() && !leaf.value->is<Parameter>()) return entry;
  const auto& tensor = leaf.value->as_tensor();
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_meta() || tensor.is_quantized()) {
    throw CheckpointError(
        fmt::format("'{}' is no tensor that a distributed checkpoint can hold", name_of(leaf.path)));
  }
  entry.is_tensor = true;
  entry.dtype = tensor.scalar_type();
  entry.sizes = tensor.sizes().vec();
  entry.pieces.push_back({.offsets = Sizes(entry.sizes.size(), 0), .sizes = entry.sizes});
  return entry;
}

// The bytes of one entry: of a tensor its own elements only, whatever it is a view of.
std::string bytes_of(const Value& value) {
  if (!value.is<at::Tensor>() && !value.is<Parameter>()) return save_bytes(value);
  return save_bytes(value.as_tensor().detach().cpu().contiguous().clone());
}

// Writes every `count`-th entry; returns where each lies, as (number, offset, length).
List write_share(const std::vector<Leaf>& leaves, const fs::path& folder, std::size_t first,
                 std::size_t count) {
  const auto file = folder / fmt::format("__{}_0.distcp", first);
  List places;
  try {
    AtomicFile target(file);
    for (auto i = first; i < leaves.size(); i += count) {
      const auto bytes = bytes_of(*leaves[i].value);
      places.items.emplace_back(Tuple{i, target.size(), bytes.size()});
      target.write(std::as_bytes(std::span(bytes)));
    }
    target.commit();
  } catch (const std::system_error& error) {
    throw CheckpointError(fmt::format("{}: cannot be written: {}", file.string(), error.code().message()));
  }
  return places;
}

void write_metadata(const Entries& entries, const fs::path& folder) {
  const auto text = write_table(entries);
  try {
    AtomicFile target(folder / kTable);
    target.write(std::as_bytes(std::span(text)));
    target.commit();
  } catch (const std::system_error& error) {
    throw CheckpointError(
        fmt::format("{}: cannot be written: {}", (folder / kTable).string(), error.code().message()));
  }
}

void set_places(Entries& entries, const Value& places, std::size_t rank) {
  for (const auto& place : places.as_items()) {
    const auto& numbers = place.as_items();
    auto& entry = entries.at(static_cast<std::size_t>(numbers[0].as_int())).second;
    const Place found{.file = fmt::format("__{}_0.distcp", rank),
                      .offset = static_cast<std::uint64_t>(numbers[1].as_int()),
                      .length = static_cast<std::uint64_t>(numbers[2].as_int())};
    (entry.is_tensor ? entry.pieces[0].place : entry.place) = found;
  }
}

}  // namespace

class Reader::Table {
 public:
  explicit Table(fs::path given) : folder(std::move(given)), entries(read_named(folder)) {
    for (std::size_t i = 0; i < entries.size(); ++i) places.emplace(entries[i].first, i);
    check_lengths();
  }

  const Entry& find(const std::string& key) const {
    const auto found = places.find(key);
    if (found != places.end()) return entries[found->second].second;
    throw CheckpointError(fmt::format("{}: there is no entry '{}'", folder.string(), key));
  }

  const Entry& find_tensor(const std::string& key) const {
    const auto& entry = find(key);
    if (entry.is_tensor) return entry;
    throw CheckpointError(fmt::format("{}: entry '{}' is no tensor", folder.string(), key));
  }

  fs::path folder;
  Entries entries;
  std::map<std::string, std::size_t> places;

 private:
  // Entries that lie in one place would make memory of nothing.
  void check_lengths() const {
    std::map<std::string, std::uint64_t> used;
    for (const auto& [key, entry] : entries) {
      if (!entry.is_tensor) used[entry.place.file] += entry.place.length;
      for (const auto& piece : entry.pieces) used[piece.place.file] += piece.place.length;
    }
    for (const auto& [file, bytes] : used) {
      std::error_code code;
      const auto there = fs::file_size(folder / file, code);
      if (code)
        throw CheckpointError(
            fmt::format("{}: cannot be read: {}", (folder / file).string(), code.message()));
      if (bytes > there) {
        throw CheckpointError(fmt::format("{}: the table says that {} bytes of it are used, but it has {}",
                                          (folder / file).string(), bytes, there));
      }
    }
  }

  static Entries read_named(const fs::path& folder) {
    const auto file = folder / kTable;
    try {
      return read_table(file);
    } catch (const CheckpointError& error) {
      const std::string what = error.what();
      if (what.starts_with(file.string())) throw;
      throw CheckpointError(fmt::format("{}: {}", file.string(), what));
    }
  }
};

Reader::Reader(const fs::path& folder) : table_(std::make_unique<const Table>(folder)) {}
Reader::Reader(Reader&&) noexcept = default;
Reader& Reader::operator=(Reader&&) noexcept = default;
Reader::~Reader() = default;

std::vector<std::string> Reader::keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, entry] : table_->entries) keys.push_back(key);
  return keys;
}

bool Reader::is_tensor(const std::string& key) const { return table_->find(key).is_tensor; }
std::vector<std::int64_t> Reader::shape(const std::string& key) const {
  return table_->find_tensor(key).sizes;
}
at::ScalarType Reader::dtype(const std::string& key) const { return table_->find_tensor(key).dtype; }

Value Reader::read(const std::string& key) const {
  const auto& entry = table_->find(key);
  if (!entry.is_tensor) return read_place(table_->folder, entry.place);
  return read_part(key, Sizes(entry.sizes.size(), 0), entry.sizes);
}

at::Tensor Reader::read_part(const std::string& key, const Sizes& offsets, const Sizes& sizes) const {
  const auto& entry = table_->find_tensor(key);
  const bool fits = offsets.size() == entry.sizes.size() && sizes.size() == entry.sizes.size() &&
                    std::ranges::all_of(std::views::iota(std::size_t{0}, sizes.size()), [&](std::size_t i) {
                      return offsets[i] >= 0 && sizes[i] >= 0 && offsets[i] <= entry.sizes[i] &&
                             sizes[i] <= entry.sizes[i] - offsets[i];
                    });
  if (!fits) throw ArgumentError(fmt::format("'{}' has no part of this shape at this place", key));
  auto part = at::empty(sizes, entry.dtype);
  for (const auto& piece : entry.pieces) {
    if (!overlap(offsets, sizes, piece)) continue;
    const auto value = read_place(table_->folder, piece.place);
    const auto& tensor = value.as_tensor();
    if (tensor.sizes() != at::IntArrayRef(piece.sizes) || tensor.scalar_type() != entry.dtype) {
      throw CheckpointError(
          fmt::format("{}: a piece of '{}' is not what the table says", table_->folder.string(), key));
    }
    copy_overlap(part, offsets, tensor.detach(), piece.offsets);
  }
  return part;
}

Dict Reader::read_all() const {
  Value root = Dict();
  for (const auto& [key, entry] : table_->entries) place_at(root, entry.path.items, 0, read(key));
  return std::move(root.as_dict());
}

Dict load(const fs::path& folder) { return Reader(folder).read_all(); }

void save(const Dict& contents, const fs::path& folder, const std::optional<ProcessGroup>& group) {
  const std::size_t rank = group ? static_cast<std::size_t>(group->rank()) : 0;
  const std::size_t ranks = group ? static_cast<std::size_t>(group->size()) : 1;
  checkpointing::on_first(group, [&] {
    std::error_code code;
    fs::create_directories(folder, code);
    // From here on the folder is no checkpoint until it is a new one.
    if (!code) fs::remove(folder / kTable, code);
    if (code) throw CheckpointError(fmt::format("{}: {}", folder.string(), code.message()));
  });
  std::vector<Leaf> leaves;
  Entries entries;
  std::string own_places;
  checkpointing::on_every(group, [&] {
    for (const auto& [key, item] : contents) {
      flatten(item, Tuple{key.is<std::string>() ? key : Value(repr(key))}, leaves);
    }
    for (const auto& leaf : leaves) entries.emplace_back(name_of(leaf.path), entry_of(leaf));
    own_places = save_bytes(Value(write_share(leaves, folder, rank, ranks)));
  });
  const auto places =
      group && ranks > 1 ? group->gather_object(own_places, 0) : std::vector<std::string>{own_places};
  checkpointing::on_first(group, [&] {
    for (std::size_t i = 0; i < places.size(); ++i) set_places(entries, load_bytes(places[i]), i);
    write_metadata(entries, folder);
  });
}

}  // namespace lockstep::distributed_checkpoint
