// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string>

namespace lockstep::observe {

// A file with mode 0600 that appears under its name whole or not at all. It replaces an old one. Throws
// std::system_error with errno's code.
void write_private_file(const std::filesystem::path& file, const std::string& bytes);

}  // namespace lockstep::observe
