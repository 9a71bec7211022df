// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>

#include <lockstep/base/atomic_file.h>
#include <lockstep/serialize/torch_file.h>

#include "serialize/pickler.h"
#include "serialize/zip_writer.h"

namespace lockstep::serialize {

/// The second half of save(): what was pickled, into a file.
void write_file(const Pickled& pickled, const std::filesystem::path& file, const SaveOptions& options);

[[noreturn]] void fail_to_sync(const std::filesystem::path& file, const NotOnDisk& error);

/// The same into a sink, whose errors come out.
void write_zip(const Pickled& pickled, const Sink& sink);

/// How many bytes that will be.
std::uint64_t zip_size(const Pickled& pickled);

}  // namespace lockstep::serialize
