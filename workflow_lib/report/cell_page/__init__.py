"""The data of the pages of single cells, which the report embeds and its script shows."""
