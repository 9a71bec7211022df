// SPDX-License-Identifier: BSD-3-Clause
#include <cerrno>
#include <fcntl.h>
#include <sstream>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/launch/program.h>

namespace lockstep::launch {
namespace {

// 0, or the errno value that execve(2) would give.
int obstacle(const std::string& path) {
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0) return errno;
  if (S_ISDIR(file.st_mode)) return EISDIR;
  return ::faccessat(AT_FDCWD, path.c_str(), X_OK, AT_EACCESS) == 0 ? 0 : errno;
}

bool is_absent(int code) { return code == ENOENT || code == ENOTDIR; }

[[noreturn]] void refuse(const std::string& name, int code) {
  if (is_absent(code)) {
    throw ProgramError(fmt::format("program \"{}\" was not found: {}", name, errno_text(code)),
                       ProgramError::kNotFound);
  }
  const char* advice = code == EISDIR ? "name a file in it"
                                      : "make it executable (chmod +x), or name its interpreter first, as in "
                                        "\"-- python3 train.py\"";
  throw ProgramError(fmt::format("program \"{}\" cannot be run: {}; {}", name, errno_text(code), advice),
                     ProgramError::kNotExecutable);
}

std::string search(const std::string& name, const std::string& folders) {
  int denied = 0;
  // The added colon keeps a last empty element, which means the current folder.
  std::istringstream list(folders + ":");
  for (std::string folder; std::getline(list, folder, ':');) {
    const std::string path = (folder.empty() ? "." : folder) + "/" + name;
    const int code = obstacle(path);
    if (code == 0) return path;
    if (code == EACCES) denied = code;
  }
  if (denied != 0) refuse(name, denied);
  const char* advice = obstacle("./" + name) == 0 ? "; there is one in this folder: write it as \"./" : "";
  throw ProgramError(fmt::format("program \"{}\" was not found in any folder of PATH{}", name,
                                 *advice != '\0' ? advice + name + "\"" : ""),
                     ProgramError::kNotFound);
}

}  // namespace

std::string find_program(const std::string& name, const Env& env) {
  if (name.find('/') == std::string::npos) return search(name, env.get("PATH").value_or("/bin:/usr/bin"));
  if (const int code = obstacle(name); code != 0) refuse(name, code);
  return name;
}

}  // namespace lockstep::launch
