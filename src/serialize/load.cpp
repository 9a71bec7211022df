// SPDX-License-Identifier: BSD-3-Clause
#include <new>

#include <c10/util/Exception.h>

#include <lockstep/serialize/torch_file.h>

#include "serialize/errors.h"
#include "serialize/torch_reader.h"
#include "serialize/zip_reader.h"

namespace lockstep {
namespace {

using serialize::ByteSource;

// Very old files are tar archives.
bool looks_like_tar(const ByteSource& source) {
  constexpr std::uint64_t magic_at = 257;
  return source.size() >= 512 && source.read_text(magic_at, 5) == "ustar";
}

Value load_any(const ByteSource& source, const LoadOptions& options) {
  if (serialize::ZipReader::looks_like_zip(source)) return serialize::load_zip(source, options);
  if (looks_like_tar(source)) {
    throw_error(
        "it is a tar archive, as PyTorch wrote them before 2017; load it with Python's "
        "torch.load(weights_only=False) if you trust it, and save it again");
  }
  return serialize::load_legacy(source, options);
}

}  // namespace

Value serialize::load_source(const ByteSource& source, const LoadOptions& options) {
  if (source.size() == 0) throw_error("{}: the file is empty", source.name());
  try {
    return with_source(source.name(), [&] { return load_any(source, options); });
  } catch (const std::bad_alloc&) {
    throw_error<CheckpointReadError>("{}: there is not enough memory for it", source.name());
  } catch (const c10::OutOfMemoryError& error) {
    throw_error<CheckpointReadError>("{}: {}", source.name(), error.what_without_backtrace());
  } catch (const c10::Error& error) {
    throw_error("{}: {}", source.name(), error.what_without_backtrace());
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
