// SPDX-License-Identifier: BSD-3-Clause
#include "python_call.h"

#include <cctype>
#include <charconv>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep::data_tool {
namespace {

constexpr int kDeepest = 20;

class PythonParser {
 public:
  explicit PythonParser(std::string_view text) : text_(text) {}

  std::vector<Value> parse_all() {
    std::vector<Value> values;
    while (peek() != '\0') {
      values.push_back(parse_value());
      if (!accept(',') && peek() != '\0') fail("','");
    }
    return values;
  }

 private:
  [[noreturn]] void fail(std::string_view expected) const {
    throw ArgumentError(fmt::format("{}: expected {} at '{}'", text_, expected,
                                    at_ < text_.size() ? text_.substr(at_) : "the end"));
  }

  char peek() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(char symbol) {
    if (peek() != symbol) return false;
    ++at_;
    return true;
  }

  static bool is_name(char symbol) {
    return std::isalnum(static_cast<unsigned char>(symbol)) != 0 || symbol == '_' || symbol == '.';
  }
  static bool begins_number(char symbol) {
    return std::isdigit(static_cast<unsigned char>(symbol)) != 0 || symbol == '-' || symbol == '+' ||
           symbol == '.';
  }

  std::string parse_name() {
    peek();
    const auto first = at_;
    while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    if (at_ == first) fail("a value");
    return std::string(text_.substr(first, at_ - first));
  }

  double parse_number() {
    accept('+');
    double number = 0;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), number);
    if (error != std::errc()) fail("a number");
    at_ = static_cast<std::size_t>(end - text_.data());
    return number;
  }
  double parse_quotient() {
    auto number = parse_number();
    while (accept('/')) {
      peek();
      const auto divisor = parse_number();
      if (divisor == 0) fail("a number other than 0 before");
      number /= divisor;
    }
    return number;
  }

  std::string parse_string(char quote) {
    const auto end = text_.find(quote, at_);
    if (end == std::string_view::npos) fail("a closing quote");
    const auto string = text_.substr(at_, end - at_);
    at_ = end + 1;
    return std::string(string);
  }

  std::vector<Value> parse_list(char close) {
    std::vector<Value> values;
    while (!accept(close)) {
      values.push_back(parse_value());
      if (!accept(',') && peek() != close) fail(fmt::format("',' or '{}'", close));
    }
    return values;
  }

  Call parse_call(std::string_view dotted) {
    Call call{.name = std::string(dotted.substr(dotted.rfind('.') + 1))};
    while (!accept(')')) {
      const auto start = at_;
      auto value = parse_value();
      if (accept('=')) {
        const auto* const name = std::get_if<Value::Name>(&value.held);
        if (name == nullptr) fail("a name before");
        if (!call.keywords.emplace(name->text, parse_value()).second) {
          throw ArgumentError(fmt::format("{}: argument {} is repeated", call.name, name->text));
        }
      } else if (!call.keywords.empty()) {
        at_ = start;
        fail("a keyword argument");
      } else {
        call.positional.push_back(std::move(value));
      }
      if (!accept(',') && peek() != ')') fail("',' or ')'");
    }
    return call;
  }

  Value parse_value() {
    if (++depth_ > kDeepest) fail("less nesting");
    auto value = parse_inner();
    --depth_;
    return value;
  }

  Value parse_inner() {
    const char first = peek();
    if (accept('[')) return {parse_list(']')};
    if (accept('(')) return {parse_list(')')};
    if (accept('\'') || accept('"')) return {parse_string(first)};
    if (begins_number(first)) return {parse_quotient()};
    const auto name = parse_name();
    if (accept('(')) return {parse_call(name)};
    if (name == "None") return {Value::None()};
    if (name == "True" || name == "False") return {name == "True"};
    return {Value::Name{name}};
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

std::vector<Value> parse_python(std::string_view text) { return PythonParser(text).parse_all(); }

}  // namespace lockstep::data_tool
