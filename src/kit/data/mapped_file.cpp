// SPDX-License-Identifier: BSD-3-Clause
#include "data/mapped_file.h"

#include "serialize/byte_source.h"
#include "serialize/storage.h"

namespace lockstep::data {

at::Tensor map_file(const std::filesystem::path& file) {
  return as_data_errors([&file] {
    const auto source = serialize::open_file(file, /*mapped=*/true);
    return serialize::storage_bytes(source->storage(0, source->size()));
  });
}

}  // namespace lockstep::data
