#include "io/flight_recorder/record_json.h"

#include <type_traits>

#include "io/base/json.h"
#include "io/base/schema.h"

namespace tri {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kRecordSchema = 1;

// Each struct lists its members once, for both the writer and the reader.
template <class Archive>
void members(Archive& a, RankSet& s) {
  a("first", s.first), a("stride", s.stride), a("size", s.size);
}

template <class Archive>
void members(Archive& a, ChannelRecord& c) {
  a("name", c.name), a("kind", c.kind), a("members", c.members), a("index", c.index);
  a("enqueued", c.enqueued), a("joined", c.joined), a("sent", c.sent), a("completed", c.completed);
  a("whole", c.whole);
  a("operation", c.operation), a("bytes", c.bytes);
}

template <class Archive>
void members(Archive& a, ActionRecord::Wait& w) {
  a("channel", w.channel), a("sequence", w.sequence);
}

template <class Archive>
void members(Archive& a, ActionRecord& r) {
  a("number", r.number), a("kind", r.kind), a("chunk", r.chunk), a("microbatch", r.microbatch), a("waits", r.waits);
}

template <class Archive>
void members(Archive& a, LoaderRecord& f) {
  a("reader", f.reader), a("wanted", f.wanted), a("reader_state", f.reader_state), a("published", f.published);
  a("seconds", f.seconds);
}

template <class Archive>
void members(Archive& a, WriterRecord& w) {
  a("state", w.state), a("progress", w.progress), a("step", w.step), a("seconds", w.seconds);
}

template <class Archive>
void members(Archive& a, FailureRecord& f) {
  a("code", f.code), a("consequence", f.consequence), a("realtime", f.realtime), a("text", f.text);
}

template <class Archive>
void members(Archive& a, EventRecord& e) {
  a("seconds", e.seconds), a("kind", e.kind), a("what", e.what), a("value", e.value);
}

template <class Archive>
void members(Archive& a, LogRecord& l) {
  a("seconds", l.seconds), a("text", l.text);
}

template <class Archive>
void members(Archive& a, StackRecord& s) {
  a("thread", s.thread), a("name", s.name), a.addresses("frames", s.frames), a("symbols", s.symbols);
}

template <class Archive>
void members(Archive& a, StreamRecord& s) {
  a("name", s.name), a("state", s.state);
}

template <class Archive>
void members(Archive& a, RankRecord& r) {
  a("world_rank", r.world_rank), a("world_size", r.world_size);
  a.grid(r.grid, r.world_rank);
  a("host", r.host), a("attempt", r.attempt), a("job", r.job), a("gpu", r.gpu), a("run_dir", r.run_dir);
  a("process", r.process), a("process_namespace", r.process_namespace), a("process_start", r.process_start);
  a("process_state", r.process_state), a("uptime", r.uptime), a("taken", r.taken);
  a("phase", r.phase), a("host_state", r.host_state), a("phase_seconds", r.phase_seconds);
  a("host_seconds", r.host_seconds), a("beat_seconds", r.beat_seconds);
  a("last_event_seconds", r.last_event_seconds), a("step", r.step), a("steps", r.steps), a("progress", r.progress);
  a("ended", r.ended), a("step_seconds", r.step_seconds);
  a.address("connection", r.connection), a("connection_name", r.connection_name);
  a("connection_set", r.connection_set), a("connection_members", r.connection_members);
  a.addresses("connections_done", r.connections_done);
  a("actions_enqueued", r.actions_enqueued), a("action_entered", r.action_entered);
  a("action_running", r.action_running), a("action", r.action), a("channels", r.channels), a("feeds", r.loaders);
  a("writer", r.writer), a("failure", r.failure), a("streams", r.streams), a("stacks", r.stacks), a("log", r.log);
  a("events", r.events);
}

template <class T>
concept Plain = std::is_arithmetic_v<T> || std::is_same_v<T, std::string>;
template <class T>
concept Struct = std::is_class_v<T> && !Plain<T>;

template <class E>
Json name_or_number(E value) {
  const std::string_view name = enum_name(value);
  return enum_from_name<E>(name) ? Json(name) : Json(static_cast<int64_t>(value));
}

constexpr const char* kAxesByDefault = "pp,dp,tp";  // of records that do not list axes

class Writer {
 public:
  template <class T>
  void operator()(const char* name, T& value) {
    json_[name] = written(value);
  }
  void address(const char* name, uint64_t value) { json_[name] = fmt::format("{:#x}", value); }
  void addresses(const char* name, const std::vector<uint64_t>& values) {
    Json list = Json::array();
    for (const uint64_t value : values) list.push_back(fmt::format("{:#x}", value));
    json_[name] = std::move(list);
  }

  // Lists, for each axis from the slowest, its size and the rank's coordinate; and the names of the axes unless they
  // are kAxesByDefault.
  void grid(const RankGrid& grid, int world_rank) {
    std::string names;
    for (auto axis = grid.axes.rbegin(); axis != grid.axes.rend(); ++axis) {
      json_[axis->name + "_rank"] = grid.rank_on(axis->name, world_rank);
      json_[axis->name + "_size"] = axis->size;
      names += (names.empty() ? "" : ",") + axis->name;
    }
    if (names != kAxesByDefault) json_["axes"] = names;
  }

  Json json_ = Json::object();

 private:
  template <Plain T>
  static Json written(T& value) {
    return value;
  }
  template <class E>
  requires std::is_enum_v<E>
  static Json written(E& value) { return name_or_number(value); }
  template <class T>
  static Json written(std::optional<T>& value) {
    return value ? written(*value) : Json();
  }
  template <class T>
  static Json written(std::vector<T>& values) {
    return list_of(values);
  }
  template <class T, size_t N>
  static Json written(std::array<T, N>& values) {
    return list_of(values);
  }
  template <Struct T>
  static Json written(T& value) {
    Writer inner;
    members(inner, value);
    return std::move(inner.json_);
  }
  template <class List>
  static Json list_of(List& values) {
    Json list = Json::array();
    for (auto& value : values) list.push_back(written(value));
    return list;
  }
};

class Reader {
 public:
  explicit Reader(const Json& json) : json_(json) {}

  template <class T>
  void operator()(const char* name, T& value) {
    if (const auto at = json_.find(name); at != json_.end()) read(*at, value);
  }
  void address(const char* name, uint64_t& value) {
    if (const auto at = json_.find(name); at != json_.end()) value = number_of(*at);
  }
  void addresses(const char* name, std::vector<uint64_t>& values) {
    const auto at = json_.find(name);
    if (at == json_.end()) return;
    values.clear();
    for (const Json& value : *at) values.push_back(number_of(value));
  }
  void grid(RankGrid& grid, int) {
    std::string names = kAxesByDefault;
    operator()("axes", names);
    grid.axes.clear();
    for (size_t at = 0; at <= names.size();) {
      const size_t end = std::min(names.find(',', at), names.size());
      GridAxis axis{.name = names.substr(at, end - at)};
      operator()((axis.name + "_size").c_str(), axis.size);
      axis.size = std::max(axis.size, 1);
      grid.axes.insert(grid.axes.begin(), std::move(axis));
      at = end + 1;
    }
  }

 private:
  static uint64_t number_of(const Json& text) { return std::stoull(text.get<std::string>(), nullptr, 16); }

  template <Plain T>
  static void read(const Json& json, T& value) {
    value = json.get<T>();
  }
  template <class E>
  requires std::is_enum_v<E>
  static void read(const Json& json, E& value) {
    if (json.is_string()) {
      if (const auto known = enum_from_name<E>(json.get<std::string>())) value = *known;
    } else {
      value = static_cast<E>(json.get<int64_t>());
    }
  }
  template <class T>
  static void read(const Json& json, std::optional<T>& value) {
    value.reset();
    if (!json.is_null()) read(json, value.emplace());
  }
  template <class T>
  static void read(const Json& json, std::vector<T>& values) {
    values.clear();
    for (const Json& value : json) read(value, values.emplace_back());
  }
  template <class T, size_t N>
  static void read(const Json& json, std::array<T, N>& values) {
    for (size_t i = 0; i < N; ++i) read(json.at(i), values[i]);
  }
  template <Struct T>
  static void read(const Json& json, T& value) {
    if (!json.is_object()) throw std::invalid_argument("a part of it is not an object");
    Reader inner(json);
    members(inner, value);
  }

  const Json& json_;
};

}  // namespace

std::string to_json(const RankRecord& record) {
  Writer writer;
  writer.json_["schema"] = kRecordSchema;
  members(writer, const_cast<RankRecord&>(record));  // a writer changes nothing
  // A log line may have been truncated inside a character.
  return writer.json_.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<RankRecord> record_from_json(std::string_view text, std::string_view source) {
  try {
    const Json json = parse_json<Json>(text);
    if (!json.is_object()) return file_error("{}: is not a JSON object", source);
    if (auto known = check_schema(source, json.value("schema", int64_t{1}), kRecordSchema); !known)
      return known.error();
    RankRecord record;
    Reader reader(json);
    members(reader, record);
    return record;
  } catch (const std::exception& problem) {
    return file_error("{}: is not the record of a rank: {}", source, problem.what());
  }
}

}  // namespace tri
