// SPDX-License-Identifier: BSD-3-Clause
#include <new>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/serialize/torch_file.h>

#include "serialize/legacy_file.h"
#include "serialize/load_source.h"
#include "serialize/zip_file.h"
#include "serialize/zip_reader.h"

namespace lockstep {
namespace {

using serialize::ByteSource;

// Very old files are tar archives.
bool looks_like_tar(const ByteSource& source) {
  constexpr std::uint64_t magic_at = 257;
  return source.size() >= 512 && source.read_text(magic_at, 5) == "ustar";
}

}  // namespace

Value serialize::load_source(const ByteSource& source, const LoadOptions& options) {
  if (source.size() == 0) throw CheckpointError(fmt::format("{}: the file is empty", source.name()));
  try {
    if (serialize::ZipReader::looks_like_zip(source)) return serialize::load_zip(source, options);
    if (looks_like_tar(source)) {
      throw CheckpointError(
          "it is a tar archive, as PyTorch wrote them before 2017; load it with Python's "
          "torch.load(weights_only=False) if you trust it, and save it again");
    }
    return serialize::load_legacy(source, options);
  } catch (const std::bad_alloc&) {
    throw CheckpointReadError(fmt::format("{}: there is not enough memory for it", source.name()));
  } catch (const c10::OutOfMemoryError& error) {
    throw CheckpointReadError(fmt::format("{}: {}", source.name(), error.what_without_backtrace()));
  } catch (const c10::Error& error) {
    throw CheckpointError(fmt::format("{}: {}", source.name(), error.what_without_backtrace()));
  } catch (const CheckpointError& error) {
    const std::string what = error.what();
    if (what.starts_with(source.name())) throw;
    throw CheckpointError(fmt::format("{}: {}", source.name(), what));
  }
}

Value load(const std::filesystem::path& file, const LoadOptions& options) {
  return serialize::load_source(*serialize::open_file(file, options.mmap && !options.map_location.is_meta()),
                                options);
}

Value load_bytes(std::span<const char> bytes, const LoadOptions& options, const std::string& name) {
  return serialize::load_source(*serialize::open_bytes(bytes, name), options);
}

}  // namespace lockstep
