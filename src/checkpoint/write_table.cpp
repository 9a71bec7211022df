// SPDX-License-Identifier: BSD-3-Clause
#include <span>
#include <system_error>

#include <fmt/format.h>

#include <lockstep/base/atomic_file.h>
#include <lockstep/base/error.h>
#include <lockstep/serialize/torch_file.h>

#include "checkpoint/distributed_table.h"
#include "checkpoint/table_trailer.h"
#include "serialize/dtypes.h"
#include "serialize/pickle_writer.h"
#include "serialize/write_file.h"

namespace lockstep::distributed_checkpoint {
namespace {

using pickle::Opcode;

constexpr const char* kModule = "torch.distributed.checkpoint.metadata";
constexpr const char* kFileModule = "torch.distributed.checkpoint.filesystem";

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
  return with_trailer(
      {.pickle = TableWriter().write(table.entries), .structure = save_bytes(table.structure)});
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
