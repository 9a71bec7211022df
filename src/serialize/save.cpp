// SPDX-License-Identifier: BSD-3-Clause
#include <caffe2/serialize/inline_container.h>
#include <exception>
#include <functional>
#include <system_error>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <lockstep/base/atomic_file.h>
#include <lockstep/base/error.h>
#include <lockstep/serialize/torch_file.h>

#include "serialize/pickler.h"
#include "serialize/storage_bytes.h"
#include "serialize/write_file.h"

namespace lockstep {
namespace {

using Sink = std::function<void(std::span<const std::byte>)>;

void write_records(caffe2::serialize::PyTorchStreamWriter& writer, const serialize::Pickled& pickled) {
  const auto text = [&](const char* name, std::string_view value) {
    writer.writeRecord(name, value.data(), value.size());
  };
  text("data.pkl", pickled.pickle);
  text(".format_version", "1");
  text(".storage_alignment", "64");
  text("byteorder", "little");
  for (std::size_t key = 0; key < pickled.storages.size(); ++key) {
    auto storage = pickled.storages[key];
    if (!storage.device().is_cpu()) storage = serialize::storage_bytes(storage).cpu().storage();
    writer.writeRecord(fmt::format("data/{}", key), storage.data(), storage.nbytes());
  }
  writer.writeEndOfFile();
}

// The zip writer is C in part: what the sink throws must not pass through it.
void write_zip(const serialize::Pickled& pickled, const Sink& sink) {
  std::exception_ptr failure;
  const auto write = [&](const void* data, std::size_t size) -> std::size_t {
    if (failure) return 0;
    try {
      sink({static_cast<const std::byte*>(data), size});
      return size;
    } catch (...) {
      failure = std::current_exception();
      return 0;
    }
  };
  try {
    caffe2::serialize::PyTorchStreamWriter writer(write);
    write_records(writer, pickled);
  } catch (const c10::Error& error) {
    if (failure) std::rethrow_exception(failure);
    throw CheckpointError(error.what_without_backtrace());
  }
}

}  // namespace

void serialize::write_file(const Pickled& pickled, const std::filesystem::path& file,
                           const SaveOptions& options) {
  try {
    AtomicFile target(file, {.sync = options.sync});
    write_zip(pickled, [&](std::span<const std::byte> bytes) { target.write(bytes); });
    target.commit();
  } catch (const std::system_error& error) {
    throw CheckpointError(
        fmt::format("{}: the checkpoint cannot be written: {}; what was there before is unchanged",
                    file.string(), error.code().message()));
  }
}

void save(const Value& value, const std::filesystem::path& file, const SaveOptions& options) {
  serialize::Pickled pickled;
  try {
    pickled = serialize::pickle_value(value);
  } catch (const CheckpointError& error) {
    throw CheckpointError(fmt::format("{}: {}", file.string(), error.what()));
  }
  serialize::write_file(pickled, file, options);
}

std::string save_bytes(const Value& value) {
  std::string bytes;
  write_zip(serialize::pickle_value(value), [&](std::span<const std::byte> piece) {
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  return bytes;
}

}  // namespace lockstep
