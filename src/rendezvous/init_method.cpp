// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/init_method.h"

#include <filesystem>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/text.h"

namespace lockstep::rendezvous {
namespace {

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}

  InitMethod parse() {
    InitMethod method;
    if (text_.empty()) return method;
    const auto query = text_.find('?');
    if (query != std::string::npos) read_query(text_.substr(query + 1), method);
    const std::string main = text_.substr(0, query);
    if (main == "env://") {
      method.kind = InitMethod::Kind::env;
    } else if (main.starts_with("tcp://")) {
      read_tcp(main.substr(6), method);
    } else if (main.starts_with("file://")) {
      read_file(main.substr(7), method);
    } else {
      refuse("it must start with env://, tcp:// or file://");
    }
    return method;
  }

 private:
  [[noreturn]] void refuse(const std::string& error) const {
    throw ArgumentError(fmt::format("init_method \"{}\": {}", text_, error));
  }

  int number(const std::string& digits, const std::string& name) const {
    const auto value = parse_number<int>(digits);
    if (!value || *value < 0) refuse(fmt::format("{} \"{}\" is not a number", name, digits));
    return *value;
  }

  void read_tcp(const std::string& address, InitMethod& method) const {
    const auto colon = address.rfind(':');
    if (colon == std::string::npos || colon == 0)
      refuse("a host and a port are needed, as in tcp://10.0.0.1:29500");
    method.kind = InitMethod::Kind::tcp;
    method.host = address.substr(0, colon);
    if (method.host.starts_with('[') && method.host.ends_with(']')) {
      method.host = method.host.substr(1, method.host.size() - 2);
    }
    method.port = number(address.substr(colon + 1), "port");
    if (method.port < 1 || method.port > 65535) refuse("the port must be 1 to 65535");
  }

  void read_file(const std::string& path, InitMethod& method) const {
    // PyTorch takes the first part of such a path for a host and drops it.
    if (!path.starts_with('/')) {
      refuse(fmt::format("the path must be absolute: file://{}", std::filesystem::absolute(path).string()));
    }
    if (path.ends_with('/')) refuse("the path must name a file, not a folder");
    method.kind = InitMethod::Kind::file;
    method.path = path;
  }

  void read_query(const std::string& query, InitMethod& method) const {
    std::size_t start = 0;
    while (start < query.size()) {
      const auto end = std::min(query.find('&', start), query.size());
      const std::string pair = query.substr(start, end - start);
      const auto equals = pair.find('=');
      const std::string name = pair.substr(0, equals);
      const std::string value = equals == std::string::npos ? "" : pair.substr(equals + 1);
      if (name == "rank") {
        method.rank = number(value, name);
      } else if (name == "world_size") {
        method.world_size = number(value, name);
      } else {
        refuse(fmt::format("\"{}\" is not a parameter; rank and world_size are", name));
      }
      start = end + 1;
    }
  }

  const std::string& text_;
};

}  // namespace

InitMethod parse_init_method(const std::string& text) { return Parser(text).parse(); }

}  // namespace lockstep::rendezvous
