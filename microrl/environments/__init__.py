"""Environments: classes whose methods are a model's tools, run in processes of their own.

A class needs `reset` and a tool; `done` and `get_reward` are optional. It is created without arguments, once for each episode:

>>> class Thermostat:
...     def reset(self, **row):  # the columns of the data's row; a text that it returns is appended to the question
...         self.degrees, self.done = row["start"], False
...     def heat(self, degrees: int) -> str:
...         '''Heat the room.
...
...         Args:
...             degrees: Degrees Celsius to add.
...         '''
...         self.degrees += degrees
...         self.done = self.degrees >= 20  # ends the episode after this call
...         return f"It is {self.degrees} degrees."
...     def get_reward(self):  # called once, at the end
...         return 1.0 if self.degrees == 20 else 0.0

Every other public method is a tool. Its JSON schema is made of its type hints and the `Args:` of its docstring; it needs both:

>>> from microrl.environments.forks import refuse_other, tool_names
>>> from microrl.errors import UserError
>>> refuse_other(Thermostat, UserError)  # nothing is missing
>>> tool_names(Thermostat)
['heat']
>>> room = Thermostat()
>>> room.reset(question="Heat the room to 20 degrees.", start=17)
>>> room.heat(3), room.done, room.get_reward()
('It is 20 degrees.', True, 1.0)
"""
