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

// Stops early once there is a `failure`.
void write_records(caffe2::serialize::PyTorchStreamWriter& writer, const serialize::Pickled& pickled,
                   const std::exception_ptr& failure) {
  const auto text = [&](const char* name, std::string_view value) {
    writer.writeRecord(name, value.data(), value.size());
  };
  text("data.pkl", pickled.pickle);
  text(".format_version", "1");
  text(".storage_alignment", "64");
  text("byteorder", "little");
  for (std::size_t key = 0; key < pickled.storages.size() && !failure; ++key) {
    auto storage = pickled.storages[key];
    if (!storage.device().is_cpu()) storage = serialize::storage_bytes(storage).cpu().storage();
    writer.writeRecord(fmt::format("data/{}", key), storage.data(), storage.nbytes());
  }
  writer.writeEndOfFile();
}

// The zip writer is C in part, so what the sink throws must not pass through it; and it ends the program when
// closing fails on the way out of a failure. It is told that all is well, therefore, and the rest is thrown
// away.
void write_zip(const serialize::Pickled& pickled, const Sink& sink) {
  std::exception_ptr failure;
  const auto write = [&](const void* data, std::size_t size) -> std::size_t {
    try {
      if (!failure) sink({static_cast<const std::byte*>(data), size});
    } catch (...) {
      failure = std::current_exception();
    }
    return size;
  };
  try {
    caffe2::serialize::PyTorchStreamWriter writer(write);
    write_records(writer, pickled, failure);
  } catch (const c10::Error& error) {
    throw CheckpointError(error.what_without_backtrace());
  }
  if (failure) std::rethrow_exception(failure);
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
