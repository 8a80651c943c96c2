#include "app/command_line.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <optional>

namespace tri {
namespace {

OptionRule rule(CLI::Validator validator) { return std::make_shared<const CLI::Validator>(std::move(validator)); }

// CLI11's own ranges show the largest double in help.
OptionRule whole_number_from(int least) {
  return rule({[least](std::string& text) {
                 const bool digits = !text.empty() && text.find_first_not_of("0123456789") == text.npos;
                 const bool some = least == 0 || text.find_first_not_of('0') != text.npos;
                 return digits && some ? std::string() : fmt::format("{} is not a whole number >= {}", text, least);
               },
               "COUNT"});
}

// Neither infinity nor NaN.
OptionRule number(const char* allowed, const char* name, bool (*holds)(double)) {
  return rule({[=](std::string& text) {
                 double value = 0;
                 const bool is_number = CLI::detail::lexical_cast(text, value) && std::isfinite(value);
                 return is_number && holds(value) ? std::string() : fmt::format("{} is not a number {}", text, allowed);
               },
               name});
}

// Of a type name such as "TEXT:{fp32,bf16}".
std::vector<std::string> choices_in(const std::string& type) {
  const size_t open = type.find('{'), close = type.find('}');
  if (open == type.npos || close == type.npos) return {};
  return CLI::detail::split(type.substr(open + 1, close - open - 1), ',');
}

}  // namespace

OptionRule in_range(int least, int most) { return rule(CLI::Range(least, most)); }
OptionRule in_range(double least, double most) { return rule(CLI::Range(least, most)); }
OptionRule choice_of(const std::vector<std::string>& choices) { return rule(CLI::IsMember(choices)); }
OptionRule shown_as(const std::string& text) {
  return rule({[](std::string&) { return std::string(); }, text});
}
const OptionRule kCount = whole_number_from(1);
const OptionRule kCountOrZero = whole_number_from(0);
const OptionRule kPositive = number("above 0", "POSITIVE", [](double value) { return value > 0; });
const OptionRule kNonNegative = number("from 0", "NONNEGATIVE", [](double value) { return value >= 0; });

Option* Option::required() { return option_->required(), this; }
Option* Option::check(const OptionRule& rule) { return option_->check(*rule), this; }
Option* Option::expected(int least, int most) { return option_->expected(least, most), this; }
Option* Option::delimiter(char separator) { return option_->delimiter(separator), this; }
Option* Option::excludes(Option* other) { return option_->excludes(other->option_), this; }
Option* Option::needs(Option* other) { return option_->needs(other->option_), this; }
Option* Option::type_name(const std::string& text) { return option_->type_name(text), this; }
Option* Option::default_str(const std::string& text) { return option_->default_str(text), this; }
Option* Option::capture_default_str() { return option_->capture_default_str(), this; }
size_t Option::count() const { return option_->count(); }

Command::Command(const std::string& description)
    : root_(std::make_unique<CLI::App>(description)), app_(root_.get()), path_("trireme") {}
Command::Command(const Command& parent, const std::string& name, CLI::App* app)
    : app_(app), path_(parent.path_ + " " + name) {}
Command::~Command() = default;

Command* Command::add_subcommand(const std::string& name, const std::string& description) {
  return &subcommands_.emplace_back(*this, name, app_->add_subcommand(name, description));
}
Command* Command::require_subcommand(int count) { return app_->require_subcommand(count), this; }
template <class T>
Option* Command::add_option(const std::string& names, T& value, const std::string& description) {
  return &options_.emplace_back(app_->add_option(names, value, description));
}
template Option* Command::add_option(const std::string&, int&, const std::string&);
template Option* Command::add_option(const std::string&, int64_t&, const std::string&);
template Option* Command::add_option(const std::string&, uint64_t&, const std::string&);
template Option* Command::add_option(const std::string&, double&, const std::string&);
template Option* Command::add_option(const std::string&, std::string&, const std::string&);
template Option* Command::add_option(const std::string&, std::optional<int>&, const std::string&);
template Option* Command::add_option(const std::string&, std::optional<int64_t>&, const std::string&);
template Option* Command::add_option(const std::string&, std::vector<int>&, const std::string&);
template Option* Command::add_option(const std::string&, std::vector<std::string>&, const std::string&);
Option* Command::add_option_function(const std::string& name, const std::function<void(const int&)>& set,
                                     const std::string& description) {
  return &options_.emplace_back(app_->add_option_function<int>(name, set, description));
}
Option* Command::add_flag(const std::string& names, bool& value, const std::string& description) {
  return &options_.emplace_back(app_->add_flag(names, value, description));
}
Option* Command::set_version_flag(const std::string& name, const std::function<std::string()>& text,
                                  const std::string& description) {
  return &options_.emplace_back(app_->set_version_flag(name, text, description));
}
void Command::set_help_all_flag(const std::string& name, const std::string& description) {
  app_->set_help_all_flag(name, description);
}
void Command::footer(const std::string& text) { app_->footer(text); }
void Command::footer(const std::function<std::string()>& text) { app_->footer(text); }
void Command::callback(const std::function<void()>& action) { app_->callback(action); }

Result<void> Command::parse(int argc, char** argv) {
  try {
    app_->parse(argc, argv);
    return {};
  } catch (const CLI::ParseError& problem) {
    if (problem.get_exit_code() != 0) return Error{problem.what()};
    app_->exit(problem);  // prints help or the version
    return {};
  }
}

std::string Command::name() const { return app_->get_name(); }
std::string Command::description() const { return app_->get_description(); }
std::string Command::help() const { return app_->help(is_root() ? "" : path_.substr(0, path_.rfind(' '))); }
bool Command::has_option(const std::string& name) const { return app_->get_option_no_throw(name) != nullptr; }

std::vector<OptionText> Command::options() const {
  std::vector<OptionText> texts;
  for (const CLI::Option* option : std::as_const(*app_).get_options())
    texts.push_back({.name = option->get_name(option->get_positional(), true),
                     .values = CLI::Formatter().make_option_opts(option),
                     .description = option->get_description(),
                     .long_names = option->get_lnames(),
                     .choices = choices_in(option->get_type_name()),
                     .positional = option->get_positional(),
                     .help = option == app_->get_help_ptr() || option == app_->get_help_all_ptr()});
  return texts;
}

std::vector<std::string> Command::subcommand_names() const {
  std::vector<std::string> names;
  for (const Command& below : subcommands_) names.push_back(below.name());
  return names;
}

std::vector<const Command*> Command::all() const {
  std::vector<const Command*> commands{this};
  for (const Command& below : subcommands_) {
    const auto deeper = below.all();
    commands.insert(commands.end(), deeper.begin(), deeper.end());
  }
  return commands;
}

const Command& Command::reached() const {
  const auto chosen = app_->get_subcommands();
  for (const Command& below : subcommands_)
    if (!chosen.empty() && below.app_ == chosen.front()) return below.reached();
  return *this;
}

std::vector<std::string> Command::remaining() const { return app_->remaining(); }

}  // namespace tri
