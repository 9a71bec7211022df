// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/write_metadata.h"

#include <algorithm>
#include <charconv>
#include <span>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/serialize/torch_file.h>

#include "base/version.h"
#include "device/libtorch_versions.h"
#include "serialize/dtypes.h"
#include "serialize/pickle.h"
#include "serialize/storage.h"
#include "serialize/torch_format.h"

namespace lockstep::distributed_checkpoint {
namespace {

namespace fs = std::filesystem;

using pickle::Opcode;

constexpr const char* kModule = "torch.distributed.checkpoint.metadata";
constexpr const char* kFileModule = "torch.distributed.checkpoint.filesystem";

// Python makes the object without calling anything, and then sets its attributes.
class MetadataWriter {
 public:
  std::string write(const Entries& entries) {
    record(kModule, "Metadata", [&] {
      dict("state_dict_metadata", entries, [&](const std::string& name, const Entry& entry) {
        writer_.text(name);
        metadata_of(entry);
        writer_.op(Opcode::set_item);
      });
      dict("planner_data", entries, [&](const std::string& name, const Entry& entry) {
        field(name, entry.path);
        writer_.op(Opcode::set_item);
      });
      dict("storage_data", entries, [&](const std::string& name, const Entry& entry) {
        if (!entry.is_tensor) storage(name, None{}, None{}, entry.place);
        for (std::size_t i = 0; i < entry.pieces.size(); ++i)
          storage(name, entry.pieces[i].offsets, i, entry.pieces[i].place);
      });
      field("storage_meta", None{});
      field("version", std::string("1.0.0"));
      field(kHasTrailer, true);
      field(kFormatField, formats::kCheckpoints.number);
    });
    return writer_.finish();
  }

 private:
  // Created without a call of its constructor.
  void object(const char* module, const char* name) {
    writer_.global(module, name);
    writer_.op(Opcode::empty_tuple);
    writer_.op(Opcode::new_object);
  }
  template <typename Fields>
  void record(const char* module, const char* name, Fields fields) {
    object(module, name);
    writer_.op(Opcode::empty_dict);
    writer_.op(Opcode::mark);
    fields();
    writer_.op(Opcode::set_items);
    writer_.op(Opcode::build);
  }
  template <typename Items>
  void dict(const char* name, const Entries& entries, Items items) {
    writer_.text(name);
    writer_.op(Opcode::empty_dict);
    for (const auto& [key, entry] : entries) items(key, entry);
  }

  void write(None) { writer_.none(); }
  void write(bool flag) { writer_.boolean(flag); }
  void write(const std::string& text) { writer_.text(text); }
  void write(std::uint64_t number) { writer_.integer(static_cast<std::int64_t>(number)); }
  void write(const Sizes& sizes) {
    writer_.call("torch", "Size", [&] { writer_.integers(sizes); });
  }
  void write(const Tuple& path) {
    writer_.tuple([&] {
      for (const auto& step : path.items)
        step.is<std::string>() ? writer_.text(step.as_string()) : writer_.integer(step.as_int());
    });
  }
  template <typename Item>
  void field(std::string_view name, const Item& item) {
    writer_.text(name);
    write(item);
  }

  // As Python's: the first piece's strides, the dtype of all.
  void properties(const Entry& entry) {
    object(kModule, "TensorProperties");
    writer_.tuple([&] {
      writer_.global("torch", serialize::find_dtype(entry.dtype)->name);
      writer_.call("torch.serialization", "_get_layout", [&] { writer_.text("torch.strided"); });
      writer_.boolean(false);
      writer_.call(kModule, "_MEM_FORMAT_ENCODING", [&] { writer_.integer(0); });
      writer_.boolean(false);
      if constexpr (libtorch::kCheckpointsHaveStrides) strides(entry.pieces);
    });
    writer_.op(Opcode::build);
  }
  void strides(const std::vector<Piece>& pieces) {
    if (pieces.empty() || pieces.front().strides.size() != pieces.front().sizes.size()) return writer_.none();
    writer_.tuple([&] {
      for (const auto stride : pieces.front().strides) writer_.integer(stride);
    });
  }

  void metadata_of(const Entry& entry) {
    if (!entry.is_tensor) return object(kModule, "BytesStorageMetadata");
    record(kModule, "TensorStorageMetadata", [&] {
      writer_.text("properties");
      properties(entry);
      field("size", entry.sizes);
      writer_.text("chunks");
      writer_.op(Opcode::empty_list);
      for (const auto& piece : entry.pieces) {
        record(kModule, "ChunkStorageMetadata", [&] {
          field("offsets", piece.offsets);
          field("sizes", piece.sizes);
        });
        writer_.op(Opcode::append);
      }
    });
  }

  // The place of a piece of a tensor, or of an object, which has neither offsets nor a number.
  template <typename Offsets, typename Number>
  void storage(const std::string& name, const Offsets& offsets, Number number, const Place& place) {
    record(kModule, "MetadataIndex", [&] {
      field("fqn", name);
      field("offset", offsets);
      field("index", number);
    });
    record(kFileModule, "_StorageInfo", [&] {
      field("relative_path", place.file);
      field("offset", place.offset);
      field("length", place.length);
    });
    writer_.op(Opcode::set_item);
  }

  pickle::Writer writer_;
};

constexpr std::string_view kTrailer = "\n# lockstep ";

std::string trailer_of(std::string_view front, std::size_t structure) {
  return fmt::format("{}{:016x} {:08x}\n", kTrailer, structure,
                     serialize::crc32_of(std::as_bytes(std::span(front))));
}

// Both parts, and a trailer with the length of the structure and the checksum of everything before it.
std::string with_trailer(const MetadataParts& parts) {
  std::string front(parts.pickle);
  front += parts.structure;
  return front + trailer_of(front, parts.structure.size());
}

}  // namespace

MetadataParts without_trailer(std::string_view text) {
  const auto length = trailer_of("", 0).size();
  const auto front = text.substr(0, text.size() - std::min(text.size(), length));
  const auto trailer = text.substr(front.size());
  if (trailer.size() < length || !trailer.starts_with(kTrailer)) return {.pickle = text, .structure = {}};
  std::size_t structure = 0;
  const auto* digits = trailer.data() + kTrailer.size();
  std::from_chars(digits, digits + 16, structure, 16);
  if (trailer != trailer_of(front, structure) || structure > front.size()) {
    throw CheckpointError(
        "the metadata of the distributed checkpoint is damaged: its checksum does not match");
  }
  return {.pickle = front.substr(0, front.size() - structure),
          .structure = front.substr(front.size() - structure)};
}

std::string write_metadata(const Metadata& metadata) {
  return with_trailer(
      {.pickle = MetadataWriter().write(metadata.entries), .structure = save_bytes(metadata.structure)});
}

void write_metadata_file(const Metadata& metadata, const fs::path& folder, bool sync) {
  const auto text = write_metadata(metadata);
  serialize::replace_file(folder / kMetadataName, sync,
                          [&](AtomicFile& target) { target.write(std::as_bytes(std::span(text))); });
}

}  // namespace lockstep::distributed_checkpoint
