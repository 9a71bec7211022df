// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string>

namespace lockstep::observe {

// Why write_private_file() refuses what exists under this name, with the remedy; empty: it does not refuse.
std::string reason_not_to_replace(const std::filesystem::path& file);

// A file with mode 0600 that appears under its name whole or not at all. It replaces an old one. Throws
// std::system_error with errno's code, and Error for a name of a link, a device or anything else but a regular file.
void write_private_file(const std::filesystem::path& file, const std::string& bytes);

}  // namespace lockstep::observe
