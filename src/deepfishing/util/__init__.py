"""Files, progress and facts about the machine, used by every stage."""
