// The commands and options of the executable, and the parsing of its command line: the part of CLI11 that the program
// uses. Only command_line.cpp includes CLI11, which takes a compiler several seconds.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "io/base/error.h"

namespace CLI {
class App;
class Option;
class Validator;
}  // namespace CLI

namespace tri {

// What the value of an option may be. Help shows it after the option's name.
using OptionRule = std::shared_ptr<const CLI::Validator>;
OptionRule in_range(int least, int most);
OptionRule in_range(double least, double most);
OptionRule choice_of(const std::vector<std::string>& choices);
// Help shows `text`; the command itself checks the value.
OptionRule shown_as(const std::string& text);
extern const OptionRule kCount;        // a whole number from 1
extern const OptionRule kCountOrZero;  // from 0
extern const OptionRule kPositive;     // a number above 0
extern const OptionRule kNonNegative;  // from 0

// An option or a positional argument. Its setters return it.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option* required();
  Option* check(const OptionRule& rule);
  Option* expected(int least, int most);  // number of values
  Option* delimiter(char separator);      // one word holds several values
  Option* excludes(Option* other);
  Option* needs(Option* other);
  Option* type_name(const std::string& text);
  Option* default_str(const std::string& text);  // what help shows as the default
  Option* capture_default_str();                 // help shows the variable's present value

  size_t count() const;  // how often the command line gave it

 private:
  CLI::Option* option_;
};

// An option as help, the man page and completion show it.
struct OptionText {
  std::string name;    // "--prompt-ids", "-h,--help", or a positional's "checkpoint"
  std::string values;  // " TEXT:{fp32,bf16}=fp32 REQUIRED"; "" for a flag
  std::string description;
  std::vector<std::string> long_names;  // without "--"
  std::vector<std::string> choices;     // {"fp32", "bf16"} if it takes one of a few values
  bool positional = false, help = false;
};

// The executable or one of its subcommands. Pointers that it returns are valid as long as the executable's own Command.
class Command {
 public:
  explicit Command(const std::string& description);  // the executable
  Command(const Command& parent, const std::string& name, CLI::App* app);
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  Command* add_subcommand(const std::string& name, const std::string& description);
  Command* require_subcommand(int count);
  // `names` is "--ranks,--gpus", or the name of a positional argument. T is one of the types that command_line.cpp
  // lists.
  template <class T>
  Option* add_option(const std::string& names, T& value, const std::string& description);
  Option* add_option_function(const std::string& name, const std::function<void(const int&)>& set,
                              const std::string& description);
  Option* add_flag(const std::string& names, bool& value, const std::string& description);
  Option* set_version_flag(const std::string& name, const std::function<std::string()>& text,
                           const std::string& description);
  void set_help_all_flag(const std::string& name, const std::string& description);
  // Printed at the end of the command's help.
  void footer(const std::string& text);
  void footer(const std::function<std::string()>& text);
  // `action` runs when the command line chooses this command.
  void callback(const std::function<void()>& action);

  // Parses the command line and runs the action of the chosen command, or prints help or the version. Fails with
  // CLI11's message if the command line is wrong. Call it for the executable, once.
  Result<void> parse(int argc, char** argv);

  bool is_root() const { return root_ != nullptr; }
  const std::string& path() const { return path_; }  // "trireme", "trireme data", "trireme data prepare"
  std::string name() const;                          // "prepare"; "" for the executable
  std::string description() const;
  std::string help() const;
  bool has_option(const std::string& name) const;
  std::vector<OptionText> options() const;  // in the order of their declaration, help first
  std::vector<std::string> subcommand_names() const;
  // This command and all below it; a command precedes those below it.
  std::vector<const Command*> all() const;
  // The last command that the words of the command line have reached, from here.
  const Command& reached() const;
  // The words that this command did not recognize.
  std::vector<std::string> remaining() const;

 private:
  std::unique_ptr<CLI::App> root_;  // of the executable; null: `app_` belongs to the parent's
  CLI::App* app_;
  std::string path_;
  std::list<Command> subcommands_;
  std::list<Option> options_;
};

}  // namespace tri
